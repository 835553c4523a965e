/* One case of faults_test.py, by name: programs that come in moeccl's way. Run under
 * moeccl-mpi. Exit code 0: all was as with MPI alone. */
#define _DEFAULT_SOURCE /* mmap without a file */
#include <dirent.h>
#include <mpi.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int rank, ranks, failures;
static const char* step = "";

static void expect(int holds, const char* what, int line) {
  if (holds) return;
  ++failures;
  fprintf(stderr, "rank %d, line %d %s: %s\n", rank, line, step, what);
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

/* Communicators with the world's ranks. */
static void dups(void) {
  for (int i = 0; i < 4; ++i) {
    MPI_Comm next;
    MPI_Comm_dup(MPI_COMM_WORLD, &next);
    exchange(next, 6);
    MPI_Comm_free(&next);
  }
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

static int class_of(int code) {
  int class = MPI_SUCCESS;
  MPI_Error_class(code, &class);
  return class;
}

/* `bytes` at the end of a page; the next one cannot be read. */
static void* guarded(size_t bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char* pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(pages + page, page, PROT_NONE);
  return pages + page - bytes;
}

/* Arguments of a call, which are right until a mistake changes them. */
typedef struct {
  int alone; /* by MPI itself */
  int counts[16], displs[16], negative[16];
  MPI_Datatype uncommitted;
  void *in, *out;
  MPI_Comm comm;
} Call;
#define CALL(function, ...) (call->alone ? P##function(__VA_ARGS__) : function(__VA_ARGS__))

enum { kAlltoall, kAlltoallv, kAllgather, kAllgatherv, kAllreduce, kReduceScatter };

static int right(int kind, Call* call) {
  switch (kind) {
    case kAlltoall:
      return CALL(MPI_Alltoall, call->in, 1, MPI_INT, call->out, 1, MPI_INT, call->comm);
    case kAlltoallv:
      return CALL(MPI_Alltoallv, call->in, call->counts, call->displs, MPI_INT, call->out,
                  call->counts, call->displs, MPI_INT, call->comm);
    case kAllgather:
      return CALL(MPI_Allgather, call->in, 1, MPI_INT, call->out, 1, MPI_INT, call->comm);
    case kAllgatherv:
      return CALL(MPI_Allgatherv, call->in, 1, MPI_INT, call->out, call->counts, call->displs,
                  MPI_INT, call->comm);
    case kAllreduce:
      return CALL(MPI_Allreduce, call->in, call->out, 1, MPI_INT, MPI_SUM, call->comm);
    default:
      return CALL(MPI_Reduce_scatter, call->in, call->out, call->counts, MPI_INT, MPI_SUM,
                  call->comm);
  }
}

#define MISTAKE(name, function, ...) \
  static int name(Call* call) { return CALL(function, __VA_ARGS__); }
#define IN call->in
#define OUT call->out
MISTAKE(uncommitted, MPI_Alltoall, IN, 1, call->uncommitted, OUT, 1, call->uncommitted, call->comm)
MISTAKE(uncommitted_v, MPI_Alltoallv, IN, call->counts, call->displs, MPI_INT, OUT, call->counts,
        call->displs, call->uncommitted, call->comm)
MISTAKE(no_type, MPI_Allgather, IN, 1, MPI_DATATYPE_NULL, OUT, 1, MPI_INT, call->comm)
MISTAKE(negative, MPI_Alltoall, IN, -1, MPI_INT, OUT, -1, MPI_INT, call->comm)
MISTAKE(negative_v, MPI_Alltoallv, IN, call->negative, call->displs, MPI_INT, OUT, call->counts,
        call->displs, MPI_INT, call->comm)
MISTAKE(negative_sum, MPI_Reduce_scatter, IN, OUT, call->negative, MPI_INT, MPI_SUM, call->comm)
MISTAKE(no_counts, MPI_Alltoallv, IN, NULL, call->displs, MPI_INT, OUT, call->counts, call->displs,
        MPI_INT, call->comm)
MISTAKE(no_displs, MPI_Allgatherv, IN, 1, MPI_INT, OUT, call->counts, NULL, MPI_INT, call->comm)
MISTAKE(no_buffer, MPI_Allgather, IN, 1, MPI_INT, NULL, 1, MPI_INT, call->comm)
MISTAKE(no_sum, MPI_Allreduce, IN, NULL, 1, MPI_INT, MPI_SUM, call->comm)
MISTAKE(no_op, MPI_Allreduce, IN, OUT, 1, MPI_INT, MPI_OP_NULL, call->comm)
MISTAKE(placed_wrongly, MPI_Alltoall, IN, 1, MPI_INT, MPI_IN_PLACE, 1, MPI_INT, call->comm)
MISTAKE(longer, MPI_Alltoall, IN, 2, MPI_INT, OUT, 1, MPI_INT, call->comm)
MISTAKE(shorter, MPI_Alltoall, IN, 1, MPI_INT, OUT, 2, MPI_INT, call->comm)
MISTAKE(longer_all, MPI_Allgather, IN, 2, MPI_INT, OUT, 1, MPI_INT, call->comm)
MISTAKE(longer_v, MPI_Allgatherv, IN, 2, MPI_INT, OUT, call->counts, call->displs, MPI_INT,
        call->comm)

static const struct {
  const char* name;
  int (*make)(Call*);
  int kind;  /* the call that it should have been */
  int alike; /* the class of its error where all ranks make it; -1: as of MPI alone */
  int alone; /* where one does; -1: the same */
} all_mistakes[] = {
    {"uncommitted", uncommitted, kAlltoall, -1, -1},
    {"uncommitted_v", uncommitted_v, kAlltoallv, -1, -1},
    {"no_type", no_type, kAllgather, -1, -1},
    {"negative", negative, kAlltoall, -1, -1},
    {"negative_v", negative_v, kAlltoallv, -1, -1},
    {"negative_sum", negative_sum, kReduceScatter, -1, -1},
    {"no_counts", no_counts, kAlltoallv, MPI_ERR_ARG, -1},
    {"no_displs", no_displs, kAllgatherv, MPI_ERR_ARG, -1},
    {"no_buffer", no_buffer, kAllgather, MPI_ERR_BUFFER, -1},
    {"no_sum", no_sum, kAllreduce, MPI_ERR_BUFFER, -1},
    {"no_op", no_op, kAllreduce, -1, -1},
    {"placed_wrongly", placed_wrongly, kAlltoall, -1, -1},
    {"longer", longer, kAlltoall, -1, MPI_ERR_TRUNCATE},
    {"shorter", shorter, kAlltoall, -1, MPI_ERR_TRUNCATE},
    {"longer_all", longer_all, kAllgather, -1, MPI_ERR_TRUNCATE},
    {"longer_v", longer_v, kAllgatherv, -1, MPI_ERR_TRUNCATE},
};

static Call new_call(void) {
  Call call;
  memset(&call, 0, sizeof call);
  for (int i = 0; i < 16; ++i) {
    call.counts[i] = 1;
    call.displs[i] = i;
    call.negative[i] = -1;
  }
  MPI_Type_contiguous(2, MPI_INT, &call.uncommitted);
  MPI_Comm_dup(MPI_COMM_WORLD, &call.comm);
  /* Of MPI_COMM_WORLD too, where Open MPI tells some mistakes, and those of requests. */
  MPI_Comm_set_errhandler(call.comm, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  exchange(call.comm, 5);
  return call;
}

static void mistakes(void) {
  for (size_t i = 0; i < sizeof all_mistakes / sizeof *all_mistakes; ++i) {
    step = all_mistakes[i].name;
    Call call = new_call();
    /* What a shorter send has less than its receive cannot be read. */
    call.in = guarded(sizeof(int) * (size_t)ranks * (all_mistakes[i].make == shorter ? 1 : 2));
    call.out = guarded(sizeof(int) * (size_t)ranks * 2);
    int class = all_mistakes[i].alike;
    if (class < 0) {
      call.alone = 1;
      class = class_of(all_mistakes[i].make(&call));
      call.alone = 0;
    }
    EXPECT(class_of(all_mistakes[i].make(&call)) == class);
    exchange(call.comm, 2);
    if (all_mistakes[i].alone >= 0) class = all_mistakes[i].alone;
    if (rank == ranks - 1)
      EXPECT(class_of(all_mistakes[i].make(&call)) == class);
    else
      EXPECT(class_of(right(all_mistakes[i].kind, &call)) == MPI_ERR_OTHER);
    EXPECT(class_of(right(kAlltoall, &call)) == MPI_ERR_OTHER);
    MPI_Comm_free(&call.comm);
    exchange(MPI_COMM_WORLD, 5);
  }
}

/* The last rank has no elements, and names no type. */
static void no_elements(void) {
  Call call = new_call();
  int counts[16], none[16] = {0}, in[16], out[16], last = rank == ranks - 1;
  for (int i = 0; i < ranks; ++i) {
    counts[i] = i < ranks - 1;
    in[i] = 100 * rank + i;
    out[i] = -1;
  }
  call.alone = 1;
  MPI_Comm self;
  MPI_Comm_dup(MPI_COMM_SELF, &self);
  MPI_Comm_set_errhandler(self, MPI_ERRORS_RETURN);
  int class = class_of(
      PMPI_Alltoallv(in, none, none, MPI_DATATYPE_NULL, out, none, none, MPI_DATATYPE_NULL, self));
  for (int round = 0; round < 3; ++round) {
    int code = last ? MPI_Alltoallv(in, none, none, MPI_DATATYPE_NULL, out, none, none,
                                    MPI_DATATYPE_NULL, call.comm)
                    : MPI_Alltoallv(in, counts, call.displs, MPI_INT, out, counts, call.displs,
                                    MPI_INT, call.comm);
    EXPECT(class_of(code) == (last ? class : MPI_SUCCESS));
    for (int i = 0; i < ranks; ++i)
      EXPECT(out[i] == (last || i == ranks - 1 ? -1 : 100 * i + rank));
    class =
        last ? class_of(PMPI_Allgatherv(in, 0, MPI_DATATYPE_NULL, out, none, none, MPI_INT, self))
             : MPI_SUCCESS;
    code = last ? MPI_Allgatherv(in, 0, MPI_DATATYPE_NULL, out, counts, call.displs, MPI_INT,
                                 call.comm)
                : MPI_Allgatherv(in, 1, MPI_INT, out, counts, call.displs, MPI_INT, call.comm);
    EXPECT(class_of(code) == class);
    for (int i = 0; i < ranks - 1; ++i) EXPECT(out[i] == 100 * i);
    for (int i = 0; i < ranks; ++i) out[i] = -1;
    exchange(call.comm, 2);
  }
  MPI_Comm_free(&self);
  MPI_Comm_free(&call.comm);
}

/* One element of 3 GiB that is not contiguous, which other ranks describe as integers. */
static void large_element(void) {
  const int kInts = 3 << 28;
  const MPI_Aint kStride = ((MPI_Aint)1 << 30) + 4096;
  Call call = new_call();
  MPI_Datatype gibibyte, element;
  MPI_Type_contiguous(1 << 28, MPI_INT, &gibibyte);
  MPI_Type_create_hvector(3, 1, kStride, gibibyte, &element);
  MPI_Type_commit(&element);
  void* memory = mmap(NULL, 3 * (size_t)kStride, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  int sends[16] = {0}, receives[16] = {0}, last = rank == ranks - 1;
  if (last) sends[0] = 1;
  if (rank == 0) receives[ranks - 1] = kInts;
  int none[16] = {0}, code;
  if (last)
    code = MPI_Alltoallv(memory, sends, none, element, call.counts, receives, none, MPI_INT,
                         call.comm);
  else
    code = MPI_Alltoallv(call.counts, sends, none, MPI_INT, memory, receives, none, MPI_INT,
                         call.comm);
  EXPECT(class_of(code) == (last ? MPI_ERR_TYPE : MPI_ERR_OTHER));
  munmap(memory, 3 * (size_t)kStride);
  MPI_Comm_free(&call.comm);
}

/* Requests, which a thread completes. */
static void requests(void) {
  Call call = new_call();
  int in[16], out[16], size = ranks;
  MPI_Request request;
  for (int round = 0; round < 2; ++round) {
    EXPECT(class_of(MPI_Ialltoall(in, -1, MPI_INT, out, -1, MPI_INT, call.comm, &request)) ==
           MPI_ERR_COUNT);
    EXPECT(class_of(MPI_Ialltoall(in, 2, MPI_INT, out, 1, MPI_INT, call.comm, &request)) ==
           MPI_ERR_TRUNCATE);
    for (int i = 0; i < size; ++i) in[i] = 100 * rank + i;
    EXPECT(MPI_Ialltoall(in, 1, MPI_INT, out, 1, MPI_INT, call.comm, &request) == MPI_SUCCESS);
    EXPECT(MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    for (int i = 0; i < size; ++i) EXPECT(out[i] == 100 * i + rank);
  }
  if (rank == ranks - 1) {
    EXPECT(class_of(MPI_Ialltoall(in, 1, call.uncommitted, out, 1, call.uncommitted, call.comm,
                                  &request)) == MPI_ERR_TYPE);
  } else {
    EXPECT(MPI_Ialltoall(in, 1, MPI_INT, out, 1, MPI_INT, call.comm, &request) == MPI_SUCCESS);
    EXPECT(MPI_Wait(&request, MPI_STATUS_IGNORE) != MPI_SUCCESS);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  exchange(call.comm, 2);
  MPI_Comm_free(&call.comm);
}

/* The last rank comes to a call so late that the others say that they wait. */
static void late(void) {
  exchange(MPI_COMM_WORLD, 5);
  if (rank == ranks - 1) sleep(11);
  exchange(MPI_COMM_WORLD, 5);
}

/* Sums of floats, which results must not depend on; and `maxima`, which anybody may compute. */
static void reduce_floats(int sums, int maxima) {
  double in = rank, out = -1, all[16], sum = ranks * (ranks - 1) / 2.0;
  for (int i = 0; i < ranks; ++i) all[i] = rank;
  for (int i = 0; i < sums; ++i) {
    MPI_Allreduce(&in, &out, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    EXPECT(out == sum);
    MPI_Reduce_scatter_block(all, &out, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    EXPECT(out == sum);
  }
  for (int i = 0; i < maxima; ++i) {
    MPI_Allreduce(&in, &out, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    EXPECT(out == ranks - 1);
  }
}
static void float_sums(void) { reduce_floats(40, 0); }
static void few_maxima(void) { reduce_floats(40, 2); }

/* With the handler that MPI begins with. */
static void fatal(void) {
  Call call = new_call();
  int in[16] = {0}, out[16];
  call.in = in;
  call.out = out;
  MPI_Comm_set_errhandler(call.comm, MPI_ERRORS_ARE_FATAL);
  if (rank == ranks - 1)
    uncommitted(&call);
  else
    right(kAlltoall, &call);
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    void (*run)(void);
  } cases[] = {{"splits", splits},
               {"come_and_go", come_and_go},
               {"dups", dups},
               {"many", many},
               {"sets", sets},
               {"mistakes", mistakes},
               {"no_elements", no_elements},
               {"large_element", large_element},
               {"requests", requests},
               {"late", late},
               {"float_sums", float_sums},
               {"few_maxima", few_maxima},
               {"fatal", fatal}};
  int threads = argc > 1 && strcmp(argv[1], "requests") == 0, level;
  MPI_Init_thread(&argc, &argv, threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &level);
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
