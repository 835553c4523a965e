/* moeccl: collective communication for Mixture-of-Experts traffic.
 *
 * Conventions, the same for every function:
 *  1. Every function returns moecclResult_t, but for moecclGetErrorString and moecclGetLastError.
 *     On failure moecclGetLastError names the argument, rank, peer and phase, and what would be
 *     right.
 *  2. Handles are opaque. Whoever creates one destroys it. A communicator must outlive its streams'
 *     work, its splits may outlive it. A handle that was destroyed or never made is
 *     moecclInvalidArgument, unless a newer one has its address. After fork() a child's calls with
 *     its parent's handles are moecclInvalidUsage, do nothing, and free nothing.
 *  3. Wrong arguments are found before anything is sent; the communicator stays usable. Functions
 *     that make a communicator, grid, route, pass or layer tell the other ranks, which then get
 *     moecclRemoteError; their communicators stay usable too. CreateSubset and CommInit do not.
 *  4. Ranks of a communicator call the same collectives, with the same count, datatype and op, in
 *     the same order, whether on streams or not. If calls differ, all ranks that call get
 *     moecclRemoteError within about a second, and the text has both calls (but see 9). Calls on
 *     one communicator come from one thread at a time, but for moecclCommCreateSubset.
 *  5. Counts are in elements of `datatype`, sizes in bytes, times in milliseconds.
 *  6. The stream comes last. NULL: the call returns when its work is complete. Otherwise the call
 *     returns at once, and buffers belong to the library until the stream has been synchronised.
 *     When a call is complete its peers need nothing more of this rank, which may compute or wait
 *     in MPI. At most 256 calls of a communicator can be unfinished; the next one waits for the
 *     oldest.
 *  7. Once a collective has failed (moecclRemoteError, moecclTimeout, moecclSystemError), every
 *     later call on that communicator returns the same error; only GetFailedRanks, Revoke, Shrink,
 *     Abort and Destroy remain. A rank that fails by itself tells the others by moecclCommRevoke.
 *     The failing call returns when the library has done with its buffers. It waits for a peer only
 *     if a message of that peer has arrived in part. If such a peer of the same node does not
 *     answer within 2 s, their connection is closed: communicators that come from the same one lose
 *     that rank too.
 *  8. "P" is the number of ranks, "rank" counts from 0 within the communicator.
 *  9. On a GPU communicator (config.memory, or moeccl/nccl.h) buffers are of its device, and a
 *     collective enqueues its work on the stream and returns, on the NULL stream too. It runs over
 *     NCCL and obeys its rules. Calls of several communicators of a device come in the same order
 *     on all ranks. None comes inside the caller's ncclGroupStart and End: data would be wrong.
 *     Ranks compare their calls if one makes no progress for 0.3 s. If they differ, all ranks get
 *     moecclRemoteError, from moecclCommGetAsyncError too, and enqueued work is aborted. Counts of
 *     an all-to-all-v are not compared, nor are calls from the first on that a rank has captured.
 *     moecclCommGetAsyncError tells of other failures; abort then. The first call of a kind, and
 *     one with the first message between two ranks, may wait for other ranks, for timeoutMs at
 *     most. After it the same call can be captured into a CUDA graph. The graph must not run beside
 *     other work of its communicators, and ends before they do: while it exists Destroy returns
 *     moecclInvalidUsage. A GPU communicator takes a usable driver (else UnhandledCudaError), NCCL
 *     2.18 or later (SystemError), and a library built with CUDA (InvalidUsage).
 */
#ifndef MOECCL_MOECCL_H_
#define MOECCL_MOECCL_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MOECCL_API __attribute__((visibility("default")))
#else
#define MOECCL_API
#endif

#define MOECCL_MAJOR 0
#define MOECCL_MINOR 3
#define MOECCL_PATCH 0
#define MOECCL_VERSION (MOECCL_MAJOR * 10000 + MOECCL_MINOR * 100 + MOECCL_PATCH)

/* Values up to moecclInProgress are NCCL's. */
typedef enum {
  moecclSuccess = 0,
  moecclUnhandledCudaError = 1,
  moecclSystemError = 2,     /* the operating system or a transport refused something */
  moecclInternalError = 3,   /* a defect of moeccl */
  moecclInvalidArgument = 4, /* one argument is wrong by itself */
  moecclInvalidUsage = 5,    /* arguments are right, but not here, or not the same on all ranks */
  moecclRemoteError = 6,     /* a rank failed, aborted, revoked, or called with other arguments */
  moecclInProgress = 7,      /* not complete yet; from moecclStreamQuery */
  moecclTimeout = 8,         /* peers did not do their part within config.timeoutMs */
  moecclNumResults = 9
} moecclResult_t;

/* Values are NCCL's. */
typedef enum {
  moecclInt8 = 0,
  moecclUint8 = 1,
  moecclInt32 = 2,
  moecclUint32 = 3,
  moecclInt64 = 4,
  moecclUint64 = 5,
  moecclFloat16 = 6,
  moecclFloat32 = 7,
  moecclFloat64 = 8,
  moecclBfloat16 = 9,
  moecclFloat8e4m3 = 10,
  moecclFloat8e5m2 = 11,
  /* Values from here on are moeccl's own. Booleans are moecclUint8, with moecclBitOr and
   * moecclBitAnd. */
  moecclInt16 = 12,
  moecclUint16 = 13,
  moecclNumTypes = 14
} moecclDataType_t;

/* How a reduction combines elements. Values up to moecclAvg are NCCL's. The maximum or minimum of
 * numbers and a NaN is NaN. The average is the complete sum, divided by the number of ranks;
 * integers are rounded towards zero. Bitwise operators are for integers: InvalidArgument with
 * floats. */
typedef enum {
  moecclSum = 0,
  moecclProd = 1,
  moecclMax = 2,
  moecclMin = 3,
  moecclAvg = 4,
  moecclBitAnd = 5,
  moecclBitOr = 6,
  moecclBitXor = 7,
  moecclNumOps = 8
} moecclRedOp_t;

typedef struct moecclComm* moecclComm_t;
typedef struct moecclGrid* moecclGrid_t;
typedef struct moecclEvent* moecclEvent_t;
/* On a host communicator: made by moecclStreamCreate, or NULL. On a GPU communicator: a
 * cudaStream_t; NULL is the legacy default stream. */
typedef void* moecclStream_t;

/* The memory that holds the buffers of a communicator's collectives. */
typedef enum {
  moecclMemoryHost = 0,
  moecclMemoryCuda = 1, /* on the CUDA device that is current when a rank joins */
  moecclNumMemories = 2
} moecclMemory_t;

#define MOECCL_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[MOECCL_UNIQUE_ID_BYTES];
} moecclUniqueId;

/* How a communicator behaves. Begin with MOECCL_CONFIG_INITIALIZER, then set fields. All ranks must
 * pass the same `algorithms`, `timeoutMs` and `memory`; they are compared. Environment variables of
 * the same meaning override the fields. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  /* 1: a thread of the library progresses this communicator and its splits, so that work on streams
   * advances while the caller computes. 0: streams advance inside Query and Synchronize. */
  int progressThread;
  /* moecclMemoryCuda: a GPU communicator, see 9 above; progressThread is then ignored. A split has
   * its parent's. */
  moecclMemory_t memory;
  /* How long a call waits while none of its messages comes or leaves whole, before it returns
   * moecclTimeout. It must be longer than the largest message takes. Also the time that all ranks
   * have to arrive in CommInit. 0: 300000. Negative: wait for ever. MOECCL_TIMEOUT (milliseconds)
   * overrides it. */
  int64_t timeoutMs;
  /* Fixed algorithms, for instance "alltoall=hierarchical;allgather=ring"; NULL or "": automatic.
   * MOECCL_ALGO overrides it, per collective. */
  const char* algorithms;
  /* Ranks with equal nodeId share a node; NULL: found out from the host. MOECCL_NODE_ID overrides
   * it. */
  const char* nodeId;
  /* How long the host of another rank may be silent before its ranks count as dead, whether they
   * are in a call or not. A process that ends is noticed at once. 0: 3000. Negative: a silent host
   * is never taken for dead. MOECCL_FAILURE_DETECTION (milliseconds) overrides it. A split has its
   * parent's. */
  int64_t failureDetectionMs;
  /* The thread that waits in a call of this communicator or of a split calls it with idleContext:
   * after each look in vain, with a progress thread every 100 ms. It can progress other libraries
   * that peers wait for, such as MPI. It may call no function of moeccl but Revoke. NULL: none.
   * Host communicators only. */
  void (*idle)(void* context);
  void* idleContext;
} moecclConfig_t;

#define MOECCL_CONFIG_MAGIC 0x6d6f6563u
#define MOECCL_CONFIG_INITIALIZER                                                              \
  {                                                                                            \
    sizeof(moecclConfig_t), MOECCL_CONFIG_MAGIC, MOECCL_VERSION, 0, moecclMemoryHost, 0, NULL, \
        NULL, 0, NULL, NULL                                                                    \
  }

/* -------------------------------------------------------------------------------------- errors */

/* *version: MOECCL_VERSION of the linked library. */
MOECCL_API moecclResult_t moecclGetVersion(int* version);
/* A constant text for a result code; never NULL. */
MOECCL_API const char* moecclGetErrorString(moecclResult_t result);
/* The text of the last error of `comm`. With NULL, or a communicator that no longer lives, it is
 * this thread's. That is of its last function that failed, or says why the last communicator that
 * it aborted or destroyed had failed. "" if there was none. Valid until the next call on `comm`, or
 * on this thread. */
MOECCL_API const char* moecclGetLastError(moecclComm_t comm);

/* ------------------------------------------------------------------------------- communicators */

/* Makes an id and opens its rendezvous in the calling process, which must be one of the ranks (or
 * stay alive until all have joined). Hand the 128 bytes to every rank by any means. An id serves
 * one communicator; joining with it again is a SystemError, or InvalidUsage while the first is
 * still being made. Only processes with the id can join. Errors: InvalidArgument (uniqueId NULL),
 * SystemError (no socket could be opened). */
MOECCL_API moecclResult_t moecclGetUniqueId(moecclUniqueId* uniqueId);

/* Joins a communicator of `nRanks` ranks. Collective; returns when all ranks have joined.
 * Errors: InvalidArgument (comm NULL, nRanks < 1, rank outside [0, nRanks), an id that
 * moecclGetUniqueId did not make, a config without initialiser). InvalidUsage (ranks disagree on
 * nRanks or on the config, or two came with one rank). Timeout (names the missing ranks).
 * SystemError. */
MOECCL_API moecclResult_t moecclCommInitRank(moecclComm_t* comm, int nRanks, moecclUniqueId id,
                                             int rank);
/* The same, with a config; NULL: defaults. */
MOECCL_API moecclResult_t moecclCommInitRankConfig(moecclComm_t* comm, int nRanks,
                                                   moecclUniqueId id, int rank,
                                                   const moecclConfig_t* config);

/* Joins the communicator of all processes that a launcher has started, or of this process alone
 * without a launcher. Collective. The environment tells the rank, the number of ranks, and how they
 * find each other: variables of torchrun, of mpirun (Open MPI, MPICH, Intel MPI) and of srun. For
 * any other launcher set MOECCL_RANK, MOECCL_NRANKS and MOECCL_ID_FILE. Over TCP (MASTER_ADDR,
 * MASTER_PORT) ranks share a secret, MOECCL_SECRET, or MOECCL_TRUSTED_NETWORK is 1
 * (ENVIRONMENT.md, "Launchers"). A rank that waits for more than two seconds says on stderr for
 * whom. config NULL: defaults. Errors: as moecclCommInitRank; InvalidArgument for a variable that
 * is wrong or missing, Timeout for a rank 0 that is not there. */
MOECCL_API moecclResult_t moecclCommInitEnv(moecclComm_t* comm, const moecclConfig_t* config);

/* Any launcher's own all-gather. Every rank calls it in the same order. `recv` has room for nRanks
 * times `bytes`, rank r's part at r * bytes. Returns 0 on success. Used only inside
 * moecclCommInitOob. */
typedef struct {
  int (*allgather)(const void* send, void* recv, size_t bytes, void* context);
  void* context;
} moecclOob_t;

/* Joins a communicator over a launcher's all-gather instead of an id. Errors as moecclCommInitRank,
 * and SystemError when the callback returns non-zero. */
MOECCL_API moecclResult_t moecclCommInitOob(moecclComm_t* comm, int nRanks, int rank,
                                            const moecclOob_t* oob, const moecclConfig_t* config);

#define MOECCL_SPLIT_NOCOLOR (-1)
/* Makes a communicator of the ranks with equal `color`, ordered by `key`, then by rank. With
 * MOECCL_SPLIT_NOCOLOR a rank takes part and gets *newComm = NULL. Collective over `comm`. config
 * NULL: the parent's (nodeId and progressThread are always the parent's). A communicator made by
 * CommInit and all that come from it can be 16384 at a time; failed and aborted ones count too.
 * Errors: InvalidArgument (comm or newComm NULL, color < -1), InvalidUsage (ranks of one color
 * disagree on the config; too many communicators), and those of moecclAllGather, by which the ranks
 * agree. */
MOECCL_API moecclResult_t moecclCommSplit(moecclComm_t comm, int color, int key,
                                          moecclComm_t* newComm, const moecclConfig_t* config);

/* Makes a communicator of ranks[nRanks], ranks of comm, in this order; the caller's is among them.
 * Collective over these alone: other ranks neither call nor wait. It uses the connections of comm.
 * All ranks make two subsets of the same ranks in the same order. Several threads may make subsets
 * at once, beside no other call on comm. config as in moecclCommSplit. Errors: InvalidArgument
 * (NULL, nRanks < 1, a rank outside comm or listed twice, a list without the caller). InvalidUsage
 * (members disagree on the config; too many communicators; a GPU communicator). moecclSend's. */
MOECCL_API moecclResult_t moecclCommCreateSubset(moecclComm_t comm, const int* ranks, int nRanks,
                                                 moecclComm_t* newComm,
                                                 const moecclConfig_t* config);

/* Makes a communicator of the ranks of comm that live, in their order, without those in
 * exclude[nExclude] (ranks of comm; NULL, 0: none). comm may have failed, and is left as it is;
 * abort or destroy it when its buffers are no longer needed. Collective over the ranks that remain.
 * They agree on one set, without any rank that one of them knows to be lost, or that ends
 * meanwhile. Their lists may differ. The new communicator has connections of its own. An excluded
 * rank does not call, but may take part when comm is shrunk again. Buffers of failed calls are
 * undefined; calls that completed are complete. config NULL: the settings of comm. Errors:
 * InvalidArgument. RemoteError (another thread has aborted comm). Timeout (a rank that lives has
 * not called within timeoutMs; all may call again). InvalidUsage (the others have excluded this
 * rank or cannot reach it, and have not called again with it within a second; or came with another
 * config). */
MOECCL_API moecclResult_t moecclCommShrink(moecclComm_t comm, const int* exclude, int nExclude,
                                           moecclComm_t* newComm, const moecclConfig_t* config);

/* Frees a communicator; NULL is allowed. Collective: waits for the work on its streams. A
 * communicator and its splits share connections. With the last of them Destroy also waits, up to
 * the timeout, until all ranks have destroyed their last. It is freed whatever the result. Errors:
 * Timeout (a rank did not come). */
MOECCL_API moecclResult_t moecclCommDestroy(moecclComm_t comm);
/* Frees a communicator without waiting, for destructors: a thread of the library does the waiting
 * of Destroy. If the process ends first, the other ranks take it for a rank that has left; they
 * still complete the calls that it had completed. Its streams must be empty or destroyed. NULL is
 * allowed. Errors: InvalidArgument, InvalidUsage (calls are unfinished; nothing is freed). */
MOECCL_API moecclResult_t moecclCommRelease(moecclComm_t comm);
/* Frees a communicator, from any state, without waiting for peers (but see 7 above); their pending
 * and later calls return moecclRemoteError. NULL is allowed. */
MOECCL_API moecclResult_t moecclCommAbort(moecclComm_t comm);
/* Tells all ranks of comm that this rank cannot go on with it, and why. Within a second every rank
 * gets moecclRemoteError from calls of comm that are under way, from later ones, and from
 * moecclCommGetAsyncError. The caller gets the same. The text names the rank that has revoked comm,
 * and has the first MOECCL_REVOKE_TEXT_BYTES bytes of `text` (UTF-8; NULL: no reason). Grids on
 * comm, and their routes, layers and passes, fail with it. Communicators that were split from comm,
 * or that comm was split from, go on, and so do its connections.
 * Local: it does not wait, and any thread may call it, also while another is in a call of comm. If
 * several ranks revoke comm at once, each rank gets the text of one of them. Revoking again does
 * nothing. A rank that computes gets the error in its next call.
 * To go on, all ranks call moecclCommShrink, which need not exclude anybody, and make grids, routes
 * and layers again on the new communicator. Errors: InvalidArgument. */
#define MOECCL_REVOKE_TEXT_BYTES 300
MOECCL_API moecclResult_t moecclCommRevoke(moecclComm_t comm, const char* text);
/* *asyncError: the error of work on streams, or of the communicator; moecclSuccess while there is
 * none. */
MOECCL_API moecclResult_t moecclCommGetAsyncError(moecclComm_t comm, moecclResult_t* asyncError);
/* The ranks of comm that this rank knows to be lost: their process has ended, their host no longer
 * answers, or they have left by Abort. Local, and works from any state. Ranks are listed in the
 * order in which they became known here, so the list only grows; another rank may know others.
 * In: `ranks` has room for *nRanks ints; it may be NULL for 0. Out: *nRanks is the number of lost
 * ranks, of which the first are stored, as far as there was room. */
MOECCL_API moecclResult_t moecclCommGetFailedRanks(moecclComm_t comm, int* ranks, int* nRanks);

/* Sets the timeout of this rank's later calls of comm, in place of config.timeoutMs. 0: that of the
 * config. Negative: never. Local: set it before a call for a timeout of that call. On GPU
 * communicators it bounds the waiting of the call itself (9 above), and not its enqueued work. */
MOECCL_API moecclResult_t moecclCommSetTimeout(moecclComm_t comm, int64_t timeoutMs);

MOECCL_API moecclResult_t moecclCommCount(moecclComm_t comm, int* nRanks);
MOECCL_API moecclResult_t moecclCommUserRank(moecclComm_t comm, int* rank);
/* Number of nodes, and the node of one rank, counted from 0 in the order of their first ranks. */
MOECCL_API moecclResult_t moecclCommNodeCount(moecclComm_t comm, int* nNodes);
MOECCL_API moecclResult_t moecclCommNodeOfRank(moecclComm_t comm, int rank, int* node);

/* ------------------------------------------------------------------------------------- streams */

/* Streams of host communicators. Those of GPU communicators are CUDA's, with CUDA's functions; the
 * functions here do not take them. */

/* A queue of collectives of `comm` and its relatives (the communicators that it was split from, or
 * that were split from it). Work on one stream runs in order, work on several streams at once.
 * Errors: InvalidUsage (a GPU communicator). */
MOECCL_API moecclResult_t moecclStreamCreate(moecclComm_t comm, moecclStream_t* stream);
/* Advances the work and returns moecclSuccess when all of it is complete, moecclInProgress when
 * not, or the error that stopped it. Never waits. */
MOECCL_API moecclResult_t moecclStreamQuery(moecclStream_t stream);
/* Waits until all work is complete, or has failed. moecclGetLastError(NULL) has the text of its
 * errors. Other communicators' work that is queued behind a failed call is lost, and they have
 * failed too. */
MOECCL_API moecclResult_t moecclStreamSynchronize(moecclStream_t stream);
/* Synchronises, then frees. NULL is allowed. */
MOECCL_API moecclResult_t moecclStreamDestroy(moecclStream_t stream);

/* Events mark places in streams of host communicators, as CUDA's do, so that a caller can wait for
 * one call alone. An event that was never recorded is complete. An event has the errors of the work
 * before its place. */

MOECCL_API moecclResult_t moecclEventCreate(moecclEvent_t* event);
/* Makes the event stand for all work that is in the stream now, and no longer for earlier
 * recordings. On the NULL stream it is complete. */
MOECCL_API moecclResult_t moecclEventRecord(moecclEvent_t event, moecclStream_t stream);
/* Advances the work and returns moecclSuccess when what was recorded is complete, moecclInProgress
 * when not, or the error that stopped it, whose text is moecclGetLastError(NULL)'s. Never waits. */
MOECCL_API moecclResult_t moecclEventQuery(moecclEvent_t event);
/* Waits until it is complete, or has failed. */
MOECCL_API moecclResult_t moecclEventSynchronize(moecclEvent_t event);
/* Calls callback(result, context) once, when the recorded work is complete (moecclSuccess) or has
 * failed. It is called here if that is so already, else in the thread that finds out, which may be
 * the library's. A recording has one callback at most. The callback may call moeccl, but not
 * destroy, abort or release a communicator. Errors: InvalidArgument, InvalidUsage (there is a
 * callback already). */
typedef void (*moecclEventCallback_t)(moecclResult_t result, void* context);
MOECCL_API moecclResult_t moecclEventSetCallback(moecclEvent_t event,
                                                 moecclEventCallback_t callback, void* context);
/* Makes work that is queued on the stream from now on begin when the event is complete. Errors:
 * InvalidArgument (the event was recorded on a stream of a communicator that is no relative of this
 * one's). */
MOECCL_API moecclResult_t moecclStreamWaitEvent(moecclStream_t stream, moecclEvent_t event);
/* Frees an event without waiting; its callback is still called. NULL is allowed. */
MOECCL_API moecclResult_t moecclEventDestroy(moecclEvent_t event);

/* ------------------------------------------------------------------------------------ messages */

/* Begins a group of calls. Between GroupStart and GroupEnd, which nest, a thread's collectives,
 * sends and receives are only noted: they begin at the last GroupEnd. Those on one stream then run
 * at once instead of one after another, and are complete together. So exchanges cannot deadlock,
 * and several small calls (of one buffer each) take little longer than one. On NULL GroupEnd
 * returns when all are complete. Arguments are checked when a call is made; buffers must stay until
 * GroupEnd's work is complete. Other functions that need other ranks must not be called in
 * between. */
MOECCL_API moecclResult_t moecclGroupStart(void);
/* Ends a group. Calls that were refused are left out. Errors: InvalidUsage (no group was started),
 * those of the calls, and InvalidArgument (a communicator was destroyed meanwhile). */
MOECCL_API moecclResult_t moecclGroupEnd(void);

/* Sends `sendbuff` ([count]) to rank `peer`, whose moecclRecv has the same count, datatype and tag.
 * Messages of one tag between two ranks arrive in the order in which they were sent. Tags are any
 * number, and independent of each other and of collectives, which may run on other streams
 * meanwhile. A rank sends to itself within one group, with the receive. A send may complete before
 * its message is received. On GPUs messages match only in their order, and tags are ignored.
 * Errors: InvalidArgument (NULL buffer, unknown datatype, a peer that is no rank, a message to
 * itself without its counterpart in the group). RemoteError (a message of another size came; the
 * peer is lost). Timeout. */
MOECCL_API moecclResult_t moecclSend(const void* sendbuff, size_t count, moecclDataType_t datatype,
                                     int peer, int32_t tag, moecclComm_t comm,
                                     moecclStream_t stream);
/* Receives the message of rank `peer` in `recvbuff` ([count]). Errors as moecclSend. */
MOECCL_API moecclResult_t moecclRecv(void* recvbuff, size_t count, moecclDataType_t datatype,
                                     int peer, int32_t tag, moecclComm_t comm,
                                     moecclStream_t stream);
/* Receives the next message of that tag of any other rank in `recvbuff` ([count]), and its rank in
 * *source, both when the call is complete. Receives of one tag are served in the order in which
 * they begin. Errors as moecclSend, and InvalidArgument (source NULL), InvalidUsage (a GPU
 * communicator, or one of one rank). */
MOECCL_API moecclResult_t moecclRecvAny(void* recvbuff, size_t count, moecclDataType_t datatype,
                                        int32_t tag, int* source, moecclComm_t comm,
                                        moecclStream_t stream);

/* --------------------------------------------------------------------------------- collectives */

/* All-to-all: element block j of `sendbuff` ([P][count]) goes to rank j; block i of `recvbuff`
 * ([P][count]) comes from rank i. Arguments and meaning are ncclAlltoAll's. The buffers must not
 * overlap. count 0 is allowed (NULL buffers too), and is still a call that all ranks make.
 * Algorithms: linear, pairwise, bruck, hierarchical (DeepSpeed-MoE 5.3).
 * Errors: InvalidArgument (NULL or overlapping buffers, unknown datatype, [P][count] beyond the
 * address space), RemoteError (a rank made another call, see 4 above), Timeout. */
MOECCL_API moecclResult_t moecclAllToAll(const void* sendbuff, void* recvbuff, size_t count,
                                         moecclDataType_t datatype, moecclComm_t comm,
                                         moecclStream_t stream);

/* All-to-all of unequal parts, with the arguments of MPI_Alltoallv: sendCounts[j] elements at
 * sendbuff + sendDispls[j] go to rank j; recvCounts[i] elements from rank i arrive at recvbuff +
 * recvDispls[i]. Counts and displacements, [P] each, are in elements; they are read before the call
 * returns. Rank j expects as many elements from i as i sends to j. Parts of recvbuff must not
 * overlap each other or the parts of sendbuff; elements between the parts are not touched.
 * Algorithms: linear (the default), pairwise, bruck, hierarchical. The last two exchange counts
 * within the call, and are InvalidUsage on GPUs.
 * Errors: InvalidArgument (NULL arrays, NULL or overlapping buffers, unknown datatype, a part
 * beyond the address space), RemoteError (a rank sends another count than its peer expects),
 * Timeout. */
MOECCL_API moecclResult_t moecclAllToAllv(const void* sendbuff, const size_t* sendCounts,
                                          const size_t* sendDispls, void* recvbuff,
                                          const size_t* recvCounts, const size_t* recvDispls,
                                          moecclDataType_t datatype, moecclComm_t comm,
                                          moecclStream_t stream);

/* All-gather: `sendbuff` ([sendCount]) of rank i arrives at recvbuff + i * sendCount
 * ([P][sendCount]) on every rank. In place when sendbuff == recvbuff + rank * sendCount, as with
 * NCCL; any other overlap is an error. Algorithms: linear, ring, recursive_doubling, hierarchical.
 * Errors as moecclAllToAll. */
MOECCL_API moecclResult_t moecclAllGather(const void* sendbuff, void* recvbuff, size_t sendCount,
                                          moecclDataType_t datatype, moecclComm_t comm,
                                          moecclStream_t stream);

/* All-gather of unequal parts, with the arguments of MPI_Allgatherv: `sendbuff` ([sendCount]) of
 * rank i arrives at recvbuff + recvDispls[i] on every rank. recvCounts ([P], recvCounts[i] is rank
 * i's sendCount) are the same on all ranks; recvDispls ([P]) may differ. Both are in elements, and
 * read before the call returns; parts must not overlap, and elements between them are not touched.
 * In place when sendbuff == recvbuff + recvDispls[rank]. Algorithms and errors as moecclAllGather,
 * and InvalidArgument (NULL arrays, sendCount that is not recvCounts[rank]). */
MOECCL_API moecclResult_t moecclAllGatherv(const void* sendbuff, size_t sendCount, void* recvbuff,
                                           const size_t* recvCounts, const size_t* recvDispls,
                                           moecclDataType_t datatype, moecclComm_t comm,
                                           moecclStream_t stream);

/* Reduce-scatter: block r ([recvCount]) of the elementwise reduction of all ranks' `sendbuff`
 * ([P][recvCount]) arrives in `recvbuff` of rank r. In place when recvbuff == sendbuff + rank *
 * recvCount. 16- and 8-bit floats are reduced in float32 and rounded when a partial result is
 * stored. Algorithms: linear (each result is rounded once, terms in rank order), ring,
 * hierarchical. Errors as moecclAllToAll, and InvalidArgument for an unknown op. */
MOECCL_API moecclResult_t moecclReduceScatter(const void* sendbuff, void* recvbuff,
                                              size_t recvCount, moecclDataType_t datatype,
                                              moecclRedOp_t op, moecclComm_t comm,
                                              moecclStream_t stream);

/* Reduce-scatter of unequal parts: sendCounts[r] elements at sendbuff + sendDispls[r], reduced over
 * all ranks, arrive in `recvbuff` ([sendCounts[rank]]) of rank r. sendCounts ([P]) are the same on
 * all ranks, sendDispls ([P]) may differ; both are read before the call returns, and parts must not
 * overlap. In place when recvbuff == sendbuff + sendDispls[rank]. Algorithms, rounding and errors
 * as moecclReduceScatter, and InvalidArgument for NULL arrays. */
MOECCL_API moecclResult_t moecclReduceScatterv(const void* sendbuff, const size_t* sendCounts,
                                               const size_t* sendDispls, void* recvbuff,
                                               moecclDataType_t datatype, moecclRedOp_t op,
                                               moecclComm_t comm, moecclStream_t stream);

/* All-reduce: the elementwise reduction of all ranks' `sendbuff` ([count]) arrives in `recvbuff`
 * ([count]) of every rank, with the same bits on all. In place when sendbuff == recvbuff.
 * Algorithms: linear, ring, halving_doubling, hierarchical. Rounding and errors as
 * moecclReduceScatter. */
MOECCL_API moecclResult_t moecclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                                          moecclDataType_t datatype, moecclRedOp_t op,
                                          moecclComm_t comm, moecclStream_t stream);

/* The four collectives with a root: arguments and meaning are NCCL's. `root` is a rank, the same on
 * all ranks. A buffer that a rank does not use may be NULL. Errors as moecclAllToAll, and
 * InvalidArgument for a root that is no rank. */

/* Broadcast: `sendbuff` ([count]) of the root arrives in `recvbuff` ([count]) of every rank. Only
 * the root uses `sendbuff`. In place when sendbuff == recvbuff. Algorithms: binomial, hierarchical,
 * pipelined (large blocks). */
MOECCL_API moecclResult_t moecclBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                                          moecclDataType_t datatype, int root, moecclComm_t comm,
                                          moecclStream_t stream);

/* Reduce: the elementwise reduction of all ranks' `sendbuff` ([count]) arrives in `recvbuff`
 * ([count]) of the root. Only the root uses `recvbuff`. In place when sendbuff == recvbuff.
 * Rounding as moecclReduceScatter. Algorithms: binomial, hierarchical, pipelined (large blocks). */
MOECCL_API moecclResult_t moecclReduce(const void* sendbuff, void* recvbuff, size_t count,
                                       moecclDataType_t datatype, moecclRedOp_t op, int root,
                                       moecclComm_t comm, moecclStream_t stream);

/* Gather: `sendbuff` ([sendCount]) of rank i arrives at recvbuff + i * sendCount ([P][sendCount])
 * of the root. Only the root uses `recvbuff`. In place when the root's sendbuff == recvbuff + root
 * * sendCount. Algorithms: linear, binomial (small blocks). */
MOECCL_API moecclResult_t moecclGather(const void* sendbuff, void* recvbuff, size_t sendCount,
                                       moecclDataType_t datatype, int root, moecclComm_t comm,
                                       moecclStream_t stream);

/* Scatter: the root's block at sendbuff + i * recvCount ([P][recvCount]) arrives in `recvbuff`
 * ([recvCount]) of rank i. Only the root uses `sendbuff`. In place when the root's recvbuff ==
 * sendbuff + root * recvCount. Algorithms: linear, binomial (small blocks). */
MOECCL_API moecclResult_t moecclScatter(const void* sendbuff, void* recvbuff, size_t recvCount,
                                        moecclDataType_t datatype, int root, moecclComm_t comm,
                                        moecclStream_t stream);

/* Barrier: complete on no rank before every rank has called it. It is an all-gather without data,
 * with the same algorithms. Errors as moecclAllToAll. */
MOECCL_API moecclResult_t moecclBarrier(moecclComm_t comm, moecclStream_t stream);

/* --------------------------------------------------------------------------------------- grids */

/* Which ranks are neighbours in the grid; MP groups are always consecutive ranks. */
typedef enum {
  moecclOrderEspEp = 0, /* ESP groups are consecutive ranks: rank = ep * nEsp + esp */
  moecclOrderEpEsp = 1, /* EP groups are consecutive ranks:  rank = esp * nEp + ep */
  moecclNumOrders = 2
} moecclGridOrder_t;

/* The assignment of P ranks to MP, EP and ESP groups (Parm II-B). P = nEp * nEsp; nMp divides P. */
typedef struct {
  int nMp;  /* ranks per model-parallel group: they hold the same tokens */
  int nEp;  /* ranks per expert-parallel group: each holds E / nEp experts */
  int nEsp; /* ranks per expert-sharding group: each holds 1 / nEsp of each of its experts */
  moecclGridOrder_t order;
} moecclGridShape_t;

typedef enum {
  moecclGroupWorld = 0, /* all P ranks, in the order of the communicator */
  moecclGroupMp = 1,
  moecclGroupEp = 2,
  moecclGroupEsp = 3,
  moecclNumGroups = 4
} moecclGroup_t;

/* Splits `comm` into the groups of a grid. Collective. `comm` must outlive the grid.
 * Errors: InvalidArgument (sizes that do not multiply or divide as above), InvalidUsage (ranks came
 * with different shapes), and those of moecclCommSplit. The ranks compare their shapes first, so a
 * wrong shape is found only when all have called. */
MOECCL_API moecclResult_t moecclGridCreate(moecclComm_t comm, moecclGridShape_t shape,
                                           moecclGrid_t* grid);
/* Collective, as moecclCommDestroy; NULL is allowed. */
MOECCL_API moecclResult_t moecclGridDestroy(moecclGrid_t grid);
/* Frees a grid from any state, without waiting for peers, as moecclCommAbort does with each of its
 * groups. The grid's communicator stays the caller's. Calls of the grid's collectives are its
 * calls, and end when it is aborted too. NULL is allowed. */
MOECCL_API moecclResult_t moecclGridAbort(moecclGrid_t grid);
MOECCL_API moecclResult_t moecclGridGetShape(moecclGrid_t grid, moecclGridShape_t* shape);
/* The communicator of the caller's group; it belongs to the grid. */
MOECCL_API moecclResult_t moecclGridGetComm(moecclGrid_t grid, moecclGroup_t group,
                                            moecclComm_t* comm);

/* The collectives of a grid are calls of all P ranks on the grid's communicator, and have its
 * streams, errors and last error text. In-place is not possible. Errors: as moecclAllToAll.
 * Notation: there are E = nEp * nExpertsPerRank experts. Expert e lives on EP position
 * j = e / nExpertsPerRank. It is cut into nEsp shards, one on each rank (j, 0), ..., (j, nEsp - 1).
 */

/* Tensor-parallel-aware all-to-all (DeepSpeed-MoE 5.3, figure 9) among the D = P / nMp
 * model-parallel groups, whose ranks hold the same data. `sendbuff` ([D][count]) is the same on all
 * ranks of a group: block g goes to all ranks of group g. `recvbuff` ([D][count]): block s comes
 * from group s. Algorithms: direct (whole blocks), sliced (each rank sends its share, then an
 * all-gather in the group; 1 / nMp of the bytes between groups). */
MOECCL_API moecclResult_t moecclTpAllToAll(const void* sendbuff, void* recvbuff, size_t count,
                                           moecclDataType_t datatype, moecclGrid_t grid,
                                           moecclStream_t stream);

/* EP&ESP dispatch (Parm III-C): the tokens for each expert go to all of its shards. `sendbuff`
 * ([nEp * nExpertsPerRank][count]) has count = capacity per rank x embedding size elements for each
 * expert. `recvbuff` ([nExpertsPerRank][P][count]) gets every rank's block for each local expert.
 * Algorithms: flat (each block crosses the network once per shard), dedup (once, if the shards
 * share a node). Its gradient is moecclCombine. */
MOECCL_API moecclResult_t moecclDispatch(const void* sendbuff, void* recvbuff, size_t count,
                                         int nExpertsPerRank, moecclDataType_t datatype,
                                         moecclGrid_t grid, moecclStream_t stream);

/* EP&ESP combine (Parm III-C): the results of an expert's shards for a rank's tokens return to it,
 * summed. `sendbuff` ([nExpertsPerRank][P][count], partial sums) and `recvbuff`
 * ([nEp * nExpertsPerRank][count]). The sum is taken in shard order and rounded once (in float32
 * for 16- and 8-bit floats), so results do not depend on the algorithm. Algorithms: flat, dedup.
 * Its gradient is moecclDispatch. */
MOECCL_API moecclResult_t moecclCombine(const void* sendbuff, void* recvbuff, size_t count,
                                        int nExpertsPerRank, moecclDataType_t datatype,
                                        moecclGrid_t grid, moecclStream_t stream);

/* SAA, simultaneous AlltoAll and AllGather (Parm III-D): moecclCombine, and an all-gather of its
 * result over the MP group. `sendbuff` ([nExpertsPerRank][P][count], partial sums) and `recvbuff`
 * ([nEp * nExpertsPerRank][nMp][count]): for each expert the results of all ranks of the MP group,
 * the same on each. Algorithms: pipelined (complete sums are gathered while the rest is under way),
 * sequential. Its gradient, of equal gradients on the ranks of an MP group, is moecclSplitDispatch.
 */
MOECCL_API moecclResult_t moecclCombineAllGather(const void* sendbuff, void* recvbuff, size_t count,
                                                 int nExpertsPerRank, moecclDataType_t datatype,
                                                 moecclGrid_t grid, moecclStream_t stream);

/* The mirror of moecclCombineAllGather: each rank dispatches its own share of its MP group's common
 * blocks. `sendbuff` ([nEp * nExpertsPerRank][nMp][count]) and `recvbuff`
 * ([nExpertsPerRank][P][count]). Algorithms: flat, dedup. Its gradient is moecclCombineAllGather.
 */
MOECCL_API moecclResult_t moecclSplitDispatch(const void* sendbuff, void* recvbuff, size_t count,
                                              int nExpertsPerRank, moecclDataType_t datatype,
                                              moecclGrid_t grid, moecclStream_t stream);

#ifdef __cplusplus
}
#endif

#endif /* MOECCL_MOECCL_H_ */
