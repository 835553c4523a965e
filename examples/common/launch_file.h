/* How ranks get the unique id by a file: rank 0's. Nobody else can read it, and no rank takes that
 * of another user, or of a run that has ended. */
#ifndef MOECCL_EXAMPLES_LAUNCH_FILE_H_
#define MOECCL_EXAMPLES_LAUNCH_FILE_H_

#include <errno.h>
#include <fcntl.h>
#include <moeccl/moeccl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launch_job.h"

/* What the file holds. */
struct LaunchIdFile {
  moecclUniqueId id;
  char writer[256]; /* a process, as launchWriter has it */
};

/* What tells a process from all others: the kernel that has booted, the namespace of its number,
 * the number, and when the process began. 0, or -1 where the system does not tell. */
static inline int launchWriter(long pid, char* text, size_t room) {
  char boot[64] = "", space[64] = "", self[32] = "", path[64], stat[1024] = "";
  const char* field;
  int i;
  FILE* file = fopen("/proc/sys/kernel/random/boot_id", "r");
  if (file == NULL) return -1;
  if (fscanf(file, "%63s", boot) != 1) boot[0] = '\0';
  fclose(file);
  snprintf(path, sizeof path, "/proc/%ld/stat", pid);
  file = fopen(path, "r");
  if (file == NULL) return -1;
  stat[fread(stat, 1, sizeof stat - 1, file)] = '\0';
  fclose(file);
  /* The process's own name, in brackets, may hold anything. The state follows, and the start is the
   * 20th field behind. */
  field = strrchr(stat, ')');
  if (field == NULL || field[1] == '\0' || field[2] == 'Z') return -1;
  for (i = 0; i < 20 && field != NULL; ++i) field = strchr(field + 1, ' ');
  if (boot[0] == '\0' || field == NULL ||
      readlink("/proc/self/ns/pid", space, sizeof space - 1) <= 0)
    return -1;
  /* /proc may be that of another namespace. */
  if (readlink("/proc/self", self, sizeof self - 1) <= 0 || atol(self) != (long)getpid()) return -1;
  snprintf(text, room, "%s %s %ld %.*s", boot, space, pid, (int)strcspn(field + 1, " "), field + 1);
  return 0;
}

/* Whether the process that has written the file is known to have ended: it was one of this
 * machine's. */
static inline int launchIsLeft(const struct LaunchIdFile* file) {
  char now[sizeof file->writer], own[sizeof file->writer];
  size_t common = 0;
  long pid;
  const char* number;
  if (launchWriter((long)getpid(), own, sizeof own) != 0) return 0;
  /* Up to the second space: the kernel, and the namespace. */
  common = strcspn(own, " ") + 1;
  common += strcspn(own + common, " ") + 1;
  if (memchr(file->writer, '\0', sizeof file->writer) == NULL ||
      strncmp(own, file->writer, common) != 0)
    return 0;
  number = file->writer + common;
  pid = strtol(number, NULL, 10);
  return launchWriter(pid, now, sizeof now) != 0 || strcmp(now, file->writer) != 0;
}

enum LaunchRead { kLaunchRead, kLaunchAbsent, kLaunchLeft, kLaunchWrong };

/* Reads the file, and says on stderr what is wrong with it. */
static inline enum LaunchRead launchRead(const char* path, struct LaunchIdFile* content) {
  struct stat about;
  ssize_t size;
  const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  const int error = errno;
  if (fd < 0 && error == ENOENT) return kLaunchAbsent;
  if (fd >= 0 ? fstat(fd, &about) != 0 : lstat(path, &about) != 0) {
    fprintf(stderr, "cannot read MOECCL_ID_FILE %s: %s\n", path, strerror(error));
    if (fd >= 0) close(fd);
    return kLaunchWrong;
  }
  size = fd >= 0 && S_ISREG(about.st_mode) ? read(fd, content, sizeof *content) : -1;
  if (fd >= 0) close(fd);
  if (!S_ISREG(about.st_mode))
    fprintf(stderr, "MOECCL_ID_FILE %s is no regular file; name a new one\n", path);
  else if (about.st_uid != geteuid())
    fprintf(stderr,
            "MOECCL_ID_FILE %s belongs to user %ld, and this rank to user %ld; all ranks must be "
            "of one user\n",
            path, (long)about.st_uid, (long)geteuid());
  else if (fd < 0)
    fprintf(stderr, "cannot read MOECCL_ID_FILE %s: %s\n", path, strerror(error));
  else if (size != (ssize_t)sizeof *content)
    fprintf(stderr, "MOECCL_ID_FILE %s holds no unique id; each run needs a new one\n", path);
  else
    return launchIsLeft(content) ? kLaunchLeft : kLaunchRead;
  return kLaunchWrong;
}

/* Writes it to a new file beside `path`, whose name is then in `draft`. 0, or -1 with errno. */
static inline int launchDraft(const char* path, char* draft, size_t room,
                              const struct LaunchIdFile* content) {
  int fd, error;
  if (snprintf(draft, room, "%s.XXXXXX", path) >= (int)room) {
    errno = ENAMETOOLONG;
    return -1;
  }
  fd = mkstemp(draft); /* O_EXCL, so through no link; for its user alone */
  if (fd < 0) return -1;
  errno = EIO;
  error = write(fd, content, sizeof *content) == (ssize_t)sizeof *content ? 0 : errno;
  if (close(fd) != 0 && error == 0) error = errno;
  if (error == 0) return 0;
  unlink(draft);
  errno = error;
  return -1;
}

/* Has the draft appear at `path`, in place of nothing but the file of a run that has ended. */
static inline int launchPlace(const char* draft, const char* path) {
  struct LaunchIdFile old;
  int tries;
  for (tries = 0; tries < 3; ++tries) {
    if (link(draft, path) == 0) return 0;
    if (errno != EEXIST) {
      fprintf(stderr, "cannot create MOECCL_ID_FILE %s: %s\n", path, strerror(errno));
      return -1;
    }
    switch (launchRead(path, &old)) {
      case kLaunchLeft:
        unlink(path);
        break;
      case kLaunchAbsent:
        break;
      case kLaunchWrong:
        return -1;
      case kLaunchRead:
        tries = 3;
        break;
    }
  }
  fprintf(
      stderr,
      "there is a MOECCL_ID_FILE %s already; each run needs a new one. Remove it if its run has "
      "ended\n",
      path);
  return -1;
}

/* Rank 0: publishes the id, whole or not at all. */
static inline int launchPublish(const char* path, const moecclUniqueId* id) {
  struct LaunchIdFile content;
  char draft[PATH_MAX + 8];
  int published;
  memset(&content, 0, sizeof content);
  content.id = *id;
  if (launchWriter((long)getpid(), content.writer, sizeof content.writer) != 0)
    content.writer[0] = '\0';
  if (launchDraft(path, draft, sizeof draft, &content) != 0) {
    fprintf(stderr, "cannot write MOECCL_ID_FILE %s: %s\n", path, strerror(errno));
    return -1;
  }
  published = launchPlace(draft, path);
  unlink(draft);
  return published;
}

/* The other ranks: wait for the id. */
static inline int launchReceive(struct LaunchJob* job, moecclUniqueId* id) {
  const struct timespec pause = {0, 10 * 1000 * 1000};
  const char* path = job->path;
  enum LaunchRead found = kLaunchAbsent;
  for (; time(NULL) < job->begin + LAUNCH_WAIT_SECONDS; nanosleep(&pause, NULL)) {
    struct LaunchIdFile content;
    char what[PATH_MAX + 80];
    found = launchRead(path, &content);
    if (found == kLaunchWrong) return -1;
    if (found == kLaunchRead) {
      *id = content.id;
      return 0;
    }
    snprintf(what, sizeof what, "rank 0 to write MOECCL_ID_FILE %s%s", path,
             found == kLaunchLeft ? ", which is still that of a run that has ended" : "");
    launchTell(job, what);
  }
  fprintf(stderr, "rank 0 has not written MOECCL_ID_FILE %s in %d seconds: was it started?\n", path,
          LAUNCH_WAIT_SECONDS);
  return -1;
}

#endif /* MOECCL_EXAMPLES_LAUNCH_FILE_H_ */
