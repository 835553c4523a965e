/* How ranks get the unique id over TCP: whoever connects to rank 0 and asks for it gets it. For
 * trusted networks. */
#ifndef MOECCL_EXAMPLES_LAUNCH_TCP_H_
#define MOECCL_EXAMPLES_LAUNCH_TCP_H_

#include <errno.h>
#include <moeccl/moeccl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launch_job.h"

/* What a rank says to rank 0, which answers with the id. */
#define LAUNCH_GREETING "moeccl id, please"

/* 0 with the port at which rank 0 hands out the id in *port, as text. */
static inline int launchPort(char* port, size_t room) {
  const char* text = launchGet("MASTER_PORT");
  const char* agent = launchGet("TORCHELASTIC_USE_AGENT_STORE");
  char* end = NULL;
  long number = strtol(text, &end, 10);
  if (*end != '\0' || number < 1 || number > 65534) {
    fprintf(stderr, "MASTER_PORT is \"%s\"; it must be a port from 1 to 65534\n", text);
    return -1;
  }
  if (agent != NULL && strcmp(agent, "True") == 0) ++number;
  snprintf(port, room, "%ld", number);
  return 0;
}

/* Sends or receives all of it, within a second. */
static inline int launchTransfer(int fd, int out, char* bytes, size_t size) {
  while (size > 0) {
    struct pollfd ready = {fd, 0, 0};
    ssize_t moved;
    ready.events = out ? POLLOUT : POLLIN;
    if (poll(&ready, 1, 1000) <= 0) return -1;
    moved = out ? send(fd, bytes, size, MSG_NOSIGNAL) : recv(fd, bytes, size, 0);
    if (moved <= 0) return -1;
    bytes += moved;
    size -= (size_t)moved;
  }
  return 0;
}

/* A socket that listens at the port on all of IPv4's addresses, IPv6's too where there are any; -1:
 * none. */
static inline int launchListen(const char* port) {
  const int families[] = {AF_INET6, AF_INET};
  int i, fd = -1;
  for (i = 0; i < 2 && fd < 0; ++i) {
    struct addrinfo hints, *found = NULL;
    const int yes = 1, no = 0;
    memset(&hints, 0, sizeof hints);
    hints.ai_family = families[i];
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE;
    if (getaddrinfo(NULL, port, &hints, &found) != 0) continue;
    fd = socket(found->ai_family, SOCK_STREAM, 0);
    if (fd >= 0) {
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
      if (families[i] == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
      if (bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 128) != 0) {
        close(fd);
        fd = -1;
      }
    }
    freeaddrinfo(found);
  }
  return fd;
}

/* Rank 0: hands the id to all others. */
static inline int launchServe(struct LaunchJob* job, const moecclUniqueId* id) {
  const time_t until = job->begin + LAUNCH_WAIT_SECONDS;
  const int nRanks = job->nRanks;
  char port[16], greeting[sizeof LAUNCH_GREETING], what[80];
  moecclUniqueId copy = *id;
  int served = 1, fd;
  if (launchPort(port, sizeof port) != 0) return -1;
  fd = launchListen(port);
  if (fd < 0) {
    fprintf(stderr, "cannot listen at port %s: %s; set MASTER_PORT to one that is free\n", port,
            strerror(errno));
    return -1;
  }
  while (served < nRanks && time(NULL) < until) {
    struct pollfd ready = {fd, POLLIN, 0};
    int peer;
    snprintf(what, sizeof what, "%d more ranks to ask for the id at port %s", nRanks - served,
             port);
    launchTell(job, what);
    if (poll(&ready, 1, 1000) <= 0) continue;
    peer = accept(fd, NULL, NULL);
    if (peer < 0) continue;
    if (launchTransfer(peer, 0, greeting, sizeof greeting) == 0 &&
        memcmp(greeting, LAUNCH_GREETING, sizeof greeting) == 0 &&
        launchTransfer(peer, 1, copy.internal, sizeof copy.internal) == 0)
      ++served;
    close(peer);
  }
  close(fd);
  if (served == nRanks) return 0;
  fprintf(stderr, "only %d of %d ranks have asked for the id at port %s in %d seconds\n", served,
          nRanks, port, LAUNCH_WAIT_SECONDS);
  return -1;
}

/* Asks rank 0 for the id. */
static inline int launchAsk(struct LaunchJob* job, moecclUniqueId* id) {
  const struct timespec pause = {0, 50 * 1000 * 1000};
  const time_t until = job->begin + LAUNCH_WAIT_SECONDS;
  const char* host = launchGet("MASTER_ADDR");
  char port[16], greeting[] = LAUNCH_GREETING, what[320];
  if (launchPort(port, sizeof port) != 0) return -1;
  snprintf(what, sizeof what, "rank 0 to answer at %s, port %s", host, port);
  for (; time(NULL) < until; nanosleep(&pause, NULL)) {
    struct addrinfo hints, *found = NULL, *each;
    launchTell(job, what);
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host, port, &hints, &found) != 0) continue;
    for (each = found; each != NULL; each = each->ai_next) {
      const int fd = socket(each->ai_family, SOCK_STREAM, 0);
      int got;
      if (fd < 0) continue;
      got = connect(fd, each->ai_addr, each->ai_addrlen) == 0 &&
            launchTransfer(fd, 1, greeting, sizeof greeting) == 0 &&
            launchTransfer(fd, 0, id->internal, sizeof id->internal) == 0;
      close(fd);
      if (got) break;
    }
    freeaddrinfo(found);
    if (each != NULL) return 0;
  }
  fprintf(stderr, "rank 0 has not answered at %s, port %s, in %d seconds: was it started?\n", host,
          port, LAUNCH_WAIT_SECONDS);
  return -1;
}

#endif /* MOECCL_EXAMPLES_LAUNCH_TCP_H_ */
