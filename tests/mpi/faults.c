/* One case of shim_faults_test.py, by name: programs that come in moeccl's way. Run under
 * moeccl-mpi. Exit code 0: all was as with MPI alone. */
#include <dirent.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks, failures;

static void expect(int holds, const char* what, int line) {
  if (holds) return;
  ++failures;
  fprintf(stderr, "rank %d, line %d: %s\n", rank, line, what);
}
#define EXPECT(holds) expect(holds, #holds, __LINE__)

static int descriptors(void) {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != NULL) ++count;
  closedir(folder);
  return count;
}

/* Calls on `comm`, with what must arrive. */
static void exchange(MPI_Comm comm, int calls) {
  int self, size, in[16], out[16];
  MPI_Comm_rank(comm, &self);
  MPI_Comm_size(comm, &size);
  for (int call = 0; call < calls; ++call) {
    for (int i = 0; i < size; ++i) in[i] = 1000 * self + 10 * i + call;
    EXPECT(MPI_Alltoall(in, 1, MPI_INT, out, 1, MPI_INT, comm) == MPI_SUCCESS);
    for (int i = 0; i < size; ++i) EXPECT(out[i] == 1000 * i + 10 * self + call);
  }
}

/* Communicators that live at once, with the world's ranks and half of them, in any order. */
static void splits(void) {
  enum { kMany = 40 };
  MPI_Comm all[kMany];
  exchange(MPI_COMM_WORLD, 4);
  int before = descriptors();
  for (int i = 0; i < kMany; ++i) {
    MPI_Comm_split(MPI_COMM_WORLD, i % 3 == 0 ? rank % 2 : 0, i % 2 ? -rank : rank, &all[i]);
    exchange(all[i], 6);
  }
  EXPECT(descriptors() <= before + 4 * kMany);
  EXPECT(descriptors() <= before + 8);
  for (int i = 0; i < kMany; i += 2) MPI_Comm_free(&all[i]);
  for (int i = 1; i < kMany; i += 2) {
    exchange(all[i], 6);
    MPI_Comm_free(&all[i]);
  }
}

/* Communicators that come and go, of which none makes many calls. */
static void come_and_go(void) {
  int before = 0;
  for (int i = 0; i < 80; ++i) {
    MPI_Comm next;
    MPI_Comm_split(MPI_COMM_WORLD, 0, i % 2 ? -rank : rank, &next);
    exchange(next, 6);
    MPI_Comm_free(&next);
    if (i == 20) before = descriptors();
  }
  EXPECT(descriptors() <= before + 4);
}

/* More communicators at once than moeccl serves. */
static void many(void) {
  enum { kMany = 300 };
  static MPI_Comm all[kMany];
  int after = 0;
  for (int i = 0; i < kMany; ++i) {
    MPI_Comm_dup(MPI_COMM_WORLD, &all[i]);
    exchange(all[i], 5);
    if (i == 0) after = descriptors();
  }
  EXPECT(descriptors() <= after + 4);
  for (int i = 0; i < kMany; ++i) MPI_Comm_free(&all[i]);
}

/* All sets of two ranks and more, the small ones first: more than have connections of their own. */
static void sets(void) {
  int before = descriptors();
  for (int size = 2; size <= ranks; ++size)
    for (int set = 0; set < 1 << ranks; ++set) {
      int members = 0;
      for (int i = 0; i < ranks; ++i) members += set >> i & 1;
      if (members != size) continue;
      MPI_Comm next;
      MPI_Comm_split(MPI_COMM_WORLD, set >> rank & 1 ? 0 : MPI_UNDEFINED, rank, &next);
      if (next == MPI_COMM_NULL) continue;
      exchange(next, 6);
      MPI_Comm_free(&next);
    }
  EXPECT(descriptors() <= before + 4 * 32);
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    void (*run)(void);
  } cases[] = {{"splits", splits}, {"come_and_go", come_and_go}, {"many", many}, {"sets", sets}};
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int found = 0;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i)
    if (argc > 1 && strcmp(argv[1], cases[i].name) == 0) {
      found = 1;
      cases[i].run();
    }
  int all = failures;
  PMPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  return !found || all > 0;
}
