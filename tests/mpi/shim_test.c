/* Every call that the shim may serve, beside MPI's own call of the same arguments (PMPI): all types
 * and shapes of arguments, communicators that come and go, and messages of MPI's that are
 * outstanding. Run under moeccl-mpi. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kMost = 1 << 17 };

static int world_rank, failures;
static const char* step = "start";
static char about[64];

static void expect(int holds, const char* what, int line) {
  if (holds) return;
  fprintf(stderr, "rank %d, line %d, %s %s: %s\n", world_rank, line, step, about, what);
  if (++failures > 5) MPI_Abort(MPI_COMM_WORLD, 1);
}
#define EXPECT(holds) expect(holds, #holds, __LINE__)

static void fill(unsigned char* bytes, size_t count, unsigned seed) {
  for (size_t i = 0; i < count; ++i) bytes[i] = (unsigned char)((seed + i * 2654435761u) >> 11);
}

static unsigned char *in, *mine, *theirs;

/* Both receive buffers begin alike, gaps included. */
static void poison(size_t bytes) {
  fill(mine, bytes, 99);
  memcpy(theirs, mine, bytes);
}

static void moves(MPI_Comm comm, int rank, int ranks, int count) {
  /* Ranks describe the same data in different ways: 2 ints as such, with a gap, or as one pair. */
  MPI_Datatype strided, pair;
  MPI_Type_vector(2, 1, 2, MPI_INT, &strided);
  MPI_Type_contiguous(2, MPI_INT, &pair);
  MPI_Type_commit(&strided);
  MPI_Type_commit(&pair);
  MPI_Datatype types[3];
  int per[3] = {2, 1, 1};
  types[0] = MPI_INT;
  types[1] = strided;
  types[2] = pair;
  for (int variant = 0; variant < 4; ++variant) {
    MPI_Datatype from = types[(rank + variant) % 3], to = types[(rank + 2 * variant) % 3];
    int sends = count * per[(rank + variant) % 3], recvs = count * per[(rank + 2 * variant) % 3];
    size_t bytes = (size_t)ranks * count * 16;
    fill(in, bytes, (unsigned)(17 * rank + variant));

    step = "alltoall";
    poison(bytes);
    EXPECT(MPI_Alltoall(in, sends, from, mine, recvs, to, comm) == MPI_SUCCESS);
    PMPI_Alltoall(in, sends, from, theirs, recvs, to, comm);
    EXPECT(memcmp(mine, theirs, bytes) == 0);
    step = "alltoall in place";
    memcpy(mine, in, bytes);
    memcpy(theirs, in, bytes);
    EXPECT(MPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, mine, recvs, to, comm) == MPI_SUCCESS);
    PMPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, theirs, recvs, to, comm);
    EXPECT(memcmp(mine, theirs, bytes) == 0);

    step = "allgather";
    poison(bytes);
    EXPECT(MPI_Allgather(in, sends, from, mine, recvs, to, comm) == MPI_SUCCESS);
    PMPI_Allgather(in, sends, from, theirs, recvs, to, comm);
    EXPECT(memcmp(mine, theirs, bytes) == 0);
    step = "allgather in place";
    memcpy(mine, in, bytes);
    memcpy(theirs, in, bytes);
    EXPECT(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, mine, recvs, to, comm) == MPI_SUCCESS);
    PMPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, theirs, recvs, to, comm);
    EXPECT(memcmp(mine, theirs, bytes) == 0);

    /* Rank i sends (i + j + variant) % 3 times the unit to j; parts come in reverse order, with
     * gaps. */
    step = "alltoallv";
    int* counts[4];
    for (int i = 0; i < 4; ++i) counts[i] = malloc(sizeof(int) * (size_t)ranks);
    int unit = per[(rank + variant) % 3], toUnit = per[(rank + 2 * variant) % 3];
    for (int i = 0; i < ranks; ++i) {
      int part = (rank + i + variant) % 3 * (count / 3);
      counts[0][i] = part * unit;
      counts[1][i] = (ranks - 1 - i) * count * unit;
      counts[2][i] = part * toUnit;
      counts[3][i] = (ranks - 1 - i) * count * toUnit;
    }
    poison(bytes);
    EXPECT(MPI_Alltoallv(in, counts[0], counts[1], from, mine, counts[2], counts[3], to, comm) ==
           MPI_SUCCESS);
    PMPI_Alltoallv(in, counts[0], counts[1], from, theirs, counts[2], counts[3], to, comm);
    EXPECT(memcmp(mine, theirs, bytes) == 0);
    step = "alltoallv in place";
    memcpy(mine, in, bytes);
    memcpy(theirs, in, bytes);
    EXPECT(MPI_Alltoallv(MPI_IN_PLACE, NULL, NULL, MPI_DATATYPE_NULL, mine, counts[2], counts[3],
                         to, comm) == MPI_SUCCESS);
    PMPI_Alltoallv(MPI_IN_PLACE, NULL, NULL, MPI_DATATYPE_NULL, theirs, counts[2], counts[3], to,
                   comm);
    EXPECT(memcmp(mine, theirs, bytes) == 0);

    step = "allgatherv";
    for (int i = 0; i < ranks; ++i) counts[2][i] = (i + variant) % 3 * (count / 3) * toUnit;
    poison(bytes);
    EXPECT(MPI_Allgatherv(in, (rank + variant) % 3 * (count / 3) * unit, from, mine, counts[2],
                          counts[3], to, comm) == MPI_SUCCESS);
    PMPI_Allgatherv(in, (rank + variant) % 3 * (count / 3) * unit, from, theirs, counts[2],
                    counts[3], to, comm);
    EXPECT(memcmp(mine, theirs, bytes) == 0);
    step = "allgatherv in place";
    memcpy(mine, in, bytes);
    memcpy(theirs, in, bytes);
    EXPECT(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, mine, counts[2], counts[3], to,
                          comm) == MPI_SUCCESS);
    PMPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, theirs, counts[2], counts[3], to, comm);
    EXPECT(memcmp(mine, theirs, bytes) == 0);
    for (int i = 0; i < 4; ++i) free(counts[i]);
  }
  MPI_Type_free(&strided);
  MPI_Type_free(&pair);
}

static void reduces(MPI_Comm comm, int rank, int ranks, int count) {
  MPI_Datatype types[] = {MPI_INT,      MPI_UNSIGNED_CHAR, MPI_SHORT,  MPI_LONG,
                          MPI_UINT64_T, MPI_FLOAT,         MPI_DOUBLE, MPI_UNSIGNED_SHORT};
  MPI_Op ops[] = {MPI_SUM, MPI_MAX, MPI_MIN, MPI_BAND, MPI_BXOR, MPI_PROD, MPI_LAND};
  for (int t = 0; t < 8; ++t)
    for (int o = 0; o < 7; ++o) {
      if ((t == 5 || t == 6) && o >= 3) continue; /* products round */
      int size;
      MPI_Type_size(types[t], &size);
      int items = count * ranks;
      sprintf(about, "type %d, op %d", t, o);
      for (int i = 0; i < items; ++i) {
        int value = (rank * 7 + i * 3) % 11 - 5;
        if (types[t] == MPI_FLOAT)
          ((float*)in)[i] = (float)value;
        else if (types[t] == MPI_DOUBLE)
          ((double*)in)[i] = value;
        else if (types[t] ==
                 MPI_UNSIGNED_SHORT) /* Open MPI 4.1's sums saturate where integers should wrap */
          ((unsigned short*)in)[i] = (unsigned short)(value + 6);
        else
          fill(in + (size_t)i * size, (size_t)size, (unsigned)(value + 6));
      }
      size_t bytes = (size_t)items * size;
      step = "allreduce";
      poison(bytes);
      EXPECT(MPI_Allreduce(in, mine, items, types[t], ops[o], comm) == MPI_SUCCESS);
      PMPI_Allreduce(in, theirs, items, types[t], ops[o], comm);
      EXPECT(memcmp(mine, theirs, bytes) == 0);
      step = "allreduce in place";
      memcpy(mine, in, bytes);
      EXPECT(MPI_Allreduce(MPI_IN_PLACE, mine, items, types[t], ops[o], comm) == MPI_SUCCESS);
      EXPECT(memcmp(mine, theirs, bytes) == 0);
      step = "reduce_scatter_block";
      poison(bytes);
      EXPECT(MPI_Reduce_scatter_block(in, mine, count, types[t], ops[o], comm) == MPI_SUCCESS);
      PMPI_Reduce_scatter_block(in, theirs, count, types[t], ops[o], comm);
      EXPECT(memcmp(mine, theirs, bytes) == 0);
      step = "reduce_scatter_block in place";
      memcpy(mine, in, bytes);
      EXPECT(MPI_Reduce_scatter_block(MPI_IN_PLACE, mine, count, types[t], ops[o], comm) ==
             MPI_SUCCESS);
      EXPECT(memcmp(mine, theirs, (size_t)count * size) == 0);
      step = "reduce_scatter";
      int* counts = malloc(sizeof(int) * (size_t)ranks);
      for (int i = 0; i < ranks; ++i) counts[i] = i % 2 == 0 ? count : 0;
      poison(bytes);
      EXPECT(MPI_Reduce_scatter(in, mine, counts, types[t], ops[o], comm) == MPI_SUCCESS);
      PMPI_Reduce_scatter(in, theirs, counts, types[t], ops[o], comm);
      EXPECT(memcmp(mine, theirs, bytes) == 0);
      step = "reduce_scatter in place";
      memcpy(mine, in, bytes);
      EXPECT(MPI_Reduce_scatter(MPI_IN_PLACE, mine, counts, types[t], ops[o], comm) == MPI_SUCCESS);
      EXPECT(memcmp(mine, theirs, (size_t)counts[rank] * size) == 0);
      free(counts);
    }
}

/* A message of 1 MiB to the next rank is outstanding across each call: its receiver is in MPI_Recv
 * until it has come. */
static void outstanding(MPI_Comm comm, int rank, int ranks) {
  size_t bytes = 1 << 20;
  unsigned char *out = malloc(bytes), *got = malloc(bytes);
  fill(out, bytes, (unsigned)rank);
  for (int round = 0; round < 14; ++round) {
    step = "messages beside collectives";
    MPI_Request request;
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks, value = rank, sum = 0;
    int odd = rank % 2;
    MPI_Isend(out, (int)bytes, MPI_BYTE, next, round, comm, &request);
    if (odd) MPI_Recv(got, (int)bytes, MPI_BYTE, before, round, comm, MPI_STATUS_IGNORE);
    switch (round % 7) {
      case 0:
        MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, comm);
        break;
      case 1:
        MPI_Alltoall(in, 4, MPI_INT, mine, 4, MPI_INT, comm);
        break;
      case 2:
        MPI_Allgather(in, 4, MPI_INT, mine, 4, MPI_INT, comm);
        break;
      case 3:
        MPI_Reduce_scatter_block(in, mine, 4, MPI_INT, MPI_MAX, comm);
        break;
      case 4:
      case 5:
      case 6: {
        int *counts = malloc(sizeof(int) * 2 * (size_t)ranks), *displs = counts + ranks;
        for (int i = 0; i < ranks; ++i) counts[i] = 2, displs[i] = 2 * i;
        if (round % 7 == 4)
          MPI_Alltoallv(in, counts, displs, MPI_INT, mine, counts, displs, MPI_INT, comm);
        if (round % 7 == 5) MPI_Allgatherv(in, 2, MPI_INT, mine, counts, displs, MPI_INT, comm);
        if (round % 7 == 6) MPI_Reduce_scatter(in, mine, counts, MPI_INT, MPI_SUM, comm);
        free(counts);
      }
    }
    if (!odd) MPI_Recv(got, (int)bytes, MPI_BYTE, before, round, comm, MPI_STATUS_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    fill(theirs, 64, (unsigned)before);
    EXPECT(memcmp(got, theirs, 64) == 0);
  }
  free(out);
  free(got);
}

static void overlaps(MPI_Comm comm, int rank, int ranks, int level) {
  for (int round = 0; round < 12; ++round) {
    step = "ialltoall";
    size_t bytes = (size_t)ranks * 4000;
    MPI_Request requests[2];
    unsigned char* second = mine + bytes;
    fill(in, bytes, (unsigned)(rank + round));
    poison(2 * bytes);
    /* The last to come is the first to be waited for, and a message is between the two. */
    EXPECT(MPI_Ialltoall(in, 4000, MPI_BYTE, mine, 4000, MPI_BYTE, comm, &requests[0]) ==
           MPI_SUCCESS);
    int token = rank;
    MPI_Sendrecv_replace(&token, 1, MPI_INT, (rank + 1) % ranks, 3, (rank + ranks - 1) % ranks, 3,
                         comm, MPI_STATUS_IGNORE);
    EXPECT(MPI_Ialltoall(in, 1000, MPI_INT, second, 1000, MPI_INT, comm, &requests[1]) ==
           MPI_SUCCESS);
    EXPECT(MPI_Wait(&requests[1], MPI_STATUS_IGNORE) == MPI_SUCCESS);
    int done = 0;
    while (!done) EXPECT(MPI_Test(&requests[0], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    PMPI_Alltoall(in, 4000, MPI_BYTE, theirs, 4000, MPI_BYTE, comm);
    PMPI_Alltoall(in, 4000, MPI_BYTE, theirs + bytes, 4000, MPI_BYTE, comm);
    EXPECT(memcmp(mine, theirs, 2 * bytes) == 0);
    MPI_Barrier(comm);
    MPI_Alltoall(in, 1, MPI_INT, mine, 1, MPI_INT, comm);
  }
  (void)level;
}

/* Arguments that are wrong are MPI's to refuse, and leave the communicator usable. */
static void mistakes(MPI_Comm comm) {
  step = "mistakes";
  MPI_Errhandler before;
  MPI_Comm_get_errhandler(comm, &before);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  int class = MPI_SUCCESS;
  MPI_Error_class(MPI_Alltoall(in, -1, MPI_INT, mine, -1, MPI_INT, comm), &class);
  EXPECT(class == MPI_ERR_COUNT);
  MPI_Error_class(MPI_Allreduce(in, mine, 1, MPI_DATATYPE_NULL, MPI_SUM, comm), &class);
  EXPECT(class == MPI_ERR_TYPE || class == MPI_ERR_OP);
  MPI_Comm_set_errhandler(comm, before);
  MPI_Errhandler_free(&before);
}

int main(int argc, char** argv) {
  int level, rank, ranks;
  int wanted =
      argc > 1 && strcmp(argv[1], "threads") == 0 ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, wanted, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  in = malloc(kMost);
  mine = malloc(kMost);
  theirs = malloc(kMost);
  fill(in, kMost, 1);
  MPI_Comm world = MPI_COMM_WORLD, copy, half;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
  MPI_Comm_dup(world, &copy);
  MPI_Comm_split(world, world_rank % 2, -world_rank, &half);
  MPI_Comm all[] = {world, copy, half, MPI_COMM_SELF};
  for (int c = 0; c < 4; ++c) {
    MPI_Comm_rank(all[c], &rank);
    MPI_Comm_size(all[c], &ranks);
    mistakes(c == 3 ? MPI_COMM_WORLD : all[c]);
    moves(all[c], rank, ranks, 0);
    moves(all[c], rank, ranks, 6);
    moves(all[c], rank, ranks, 300);
    reduces(all[c], rank, ranks, 5);
    outstanding(all[c], rank, ranks);
    overlaps(all[c], rank, ranks, level);
  }
  /* Many communicators that come and go. */
  for (int i = 0; i < 30; ++i) {
    MPI_Comm next;
    MPI_Comm_dup(half, &next);
    for (int k = 0; k < 6; ++k) {
      int value = world_rank, sum = 0, other = 0;
      MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, next);
      PMPI_Allreduce(&value, &other, 1, MPI_INT, MPI_SUM, next);
      EXPECT(sum == other);
    }
    MPI_Comm_free(&next);
  }
  MPI_Comm_free(&half);
  MPI_Comm_free(&copy);
  /* A child without MPI still runs. */
  step = "a child";
  if (world_rank == 0) EXPECT(system("true") == 0);
  int all_failures = failures;
  PMPI_Allreduce(&failures, &all_failures, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  free(in);
  free(mine);
  free(theirs);
  MPI_Finalize();
  return all_failures > 0;
}
