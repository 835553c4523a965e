/* Routes: they bring each token's row to the experts that its gate chose, and what these made of it
 * back. Conventions as in moeccl.h. The text of an error is found with moecclGetLastError(comm) of
 * the grid's communicator, or of NULL.
 *
 *   moecclRouteCreate                 once: what stays
 *   moecclRouteBegin                  each step: which experts each token chose
 *   moecclPassGetRows                 how many rows come, and which expert's they are
 *   moecclPassDispatch                tokens -> rows
 *       (the caller's experts)
 *   moecclPassCombine                 rows -> tokens
 *   moecclPassCombineBackward, moecclPassDispatchBackward
 *   moecclPassEnd
 *
 * Any pass may have another number of tokens, on each rank, and none. Several passes of a route may
 * be open, each with a routing of its own. While a pass is open its calls may be repeated: nothing
 * but rows is sent for them.
 *
 * Symbols:
 *   tokens  of this rank      k       config.topK       hidden  elements of a token
 *   rows    that come to this rank: one for each choice of one of its experts, by any token of any
 *           rank
 *
 * Experts: EP position j of the grid holds E / N_EP consecutive experts of config.experts, E; where
 *   N_EP does not divide E, the first E mod N_EP positions hold one more. With N_ESP > 1 each
 * expert is cut into N_ESP shards: every shard's rank gets the row, and what the shards return is
 * added up. Each rank brings tokens of its own, in an MP group too, unless config.sharedTokens says
 * that ranks of an MP group bring the same.
 *
 * Rows come by expert; of an expert by the rank that they come from; from a rank in the order of
 *   its tokens, whatever algorithm brings them. A route with a schedule has an order of its own
 *   among the rows of an expert.
 *
 * Sums: what comes back for a token is weighted and added up in float32: node by node of the
 *   experts' ranks, in a node by expert, of an expert by shard. Each node's sum is rounded to
 *   config.datatype. Then the sums of nodes are added by their numbers, and rounded. So results
 * have the same bits under every algorithm; but which NaN a sum is may differ.
 *
 * Rows by token: with config.rowsByToken a rank gets one row of a token, however many of its
 *   experts the token chose. The row's choices travel with it: moecclRows_t has the number of each
 *   expert among the rank's own, and its weight. The caller weights what these experts make and
 *   adds it up; Combine adds what the ranks return.
 *
 * Schedules: a route has one where it has a capacity, where MP groups share tokens, where
 *   config.schedule names one, and where config.datatype is float64. Its passes bring rows by the
 *   collectives of that schedule (moecclSchedule_t in moe.h; Parm III-B, PPMoE 3.3), and its ranks
 *   agree in Begin on the largest number of tokens: messages of a route with a capacity are as
 *   large as that takes. A token names an expert once at most. The grid must outlive its passes.
 *
 * Capacity: T tokens of an MP group lie in config.capacityGroups groups. In each an expert has
 *   places for topK * capacityFactor * T / E choices, over the groups, as in moe.h; first choices
 *   get theirs before second ones, in the order of tokens. Other choices are dropped. So what is
 *   dropped depends on the MP group's own tokens alone. Rows of an expert are all of its places;
 *   those that no token has are zero.
 *
 * Algorithms: node (a token crosses to each node once, to this rank's peer there, which hands it
 *   on; sums are made there and cross once), rank (a token goes once to each rank that has one of
 *   its experts), flat (a row for each choice).
 *
 * Modes: throughput (ranks tell each other how many rows come, then send exactly these) and
 * latency, for decoding: a few tokens per rank, again and again. There a token names an expert once
 * at most, all is prepared for config.maxTokens, and Begin is local. Messages say themselves which
 *   rows they have. So how many rows come is known only when a Dispatch is over, and buffers of
 * rows have room for moecclRouteInfo_t's maxRows. Combine comes after Dispatch, and there are no
 *   gradients. Calls allocate nothing, but for each pass that is open beside others. A rank sends
 *   one message to its peer on each other node (node), or to each rank (rank, flat).
 *
 * On a GPU communicator all buffers, experts and weights too, are of its device; counts are the
 * host's. Begin waits for the GPU, since the host must know the choices. The other calls enqueue.
 * Results have the same bits as on hosts. In latency mode Begin enqueues too, and nothing waits: so
 * all of a step can be captured, once it has been made. What is no expert there, or an expert that
 * the token has already, counts as -1. Messages have the sizes of config.buckets, and each open
 * pass has memory for P * maxTokens tokens and twice maxRows rows.
 */
#ifndef MOECCL_ROUTE_H_
#define MOECCL_ROUTE_H_

#include <moeccl/moeccl.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moecclRoute* moecclRoute_t;
typedef struct moecclRoutePass* moecclRoutePass_t;

/* Who multiplies what experts return by the weights of the choices. */
typedef enum {
  moecclRouteWeightsCombine = 0, /* moecclPassCombine */
  moecclRouteWeightsRows = 1, /* the caller: weights travel with the rows. Throughput mode, hosts */
  moecclRouteWeightsNone = 2, /* nobody here: routings have no weights */
  moecclRouteNumWeights = 3
} moecclRouteWeights_t;

/* Begin with MOECCL_ROUTE_CONFIG_INITIALIZER, then set fields. The same on all ranks, which compare
 * them. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  int experts; /* E: 1 to 32768 */
  int topK;    /* k: 1 to 128 */
  moecclRouteWeights_t weights;
  /* Of outputs, of gradients and of the rows that Combine takes: float32, float16 or bfloat16; on
   * hosts in throughput mode float64 too. */
  moecclDataType_t datatype;
  int64_t hidden;
  /* Of the tokens that Dispatch takes, and of the rows that it brings. 0: `datatype`. Else float32,
   * float16, bfloat16, or float8e4m3 or float8e5m2: then a row is `hidden` elements, a multiple of
   * 128, and behind them a float32 scale for each 128 (moecclQuantizeRows). */
  moecclDataType_t tokenDatatype;
  /* Of throughput mode. 1: ranks of an MP group bring the same tokens. Of their routing that counts
   * which the owner of a token brings: rank i owns the i-th of N_MP equal parts of the padded
   * tokens. What comes back is the same on all of them, and rowGradients are of the group's tokens
   * once. With N_MP 1 it makes no difference. A route with a schedule and N_MP above 1 needs it. */
  int sharedTokens;
  /* "throughput" or "latency"; NULL or "": throughput. */
  const char* mode;
  /* "node", "rank" or "flat"; NULL or "": the fastest as predicted, for each Begin anew, from what
   * all ranks bring to it; in latency mode once, for maxTokens that choose evenly. */
  const char* algorithm;
  /* The most tokens that a rank brings to a Begin; 0: any number. In latency mode 1 to 1024. */
  int64_t maxTokens;
  /* Of latency mode on GPUs: numbers of tokens, ascending, up to maxTokens, which is the last one
   * whether or not it is among them. Messages have room for the least that is not below Begin's
   * tokens: it must be the same on all ranks, which are told where it is not, as of other calls
   * that differ (moeccl.h, 9). Hosts send what there is. NULL and 0: maxTokens. */
  const int64_t* buckets;
  int64_t numBuckets;

  /* The rest is of throughput mode. */
  double capacityFactor;  /* finite, above 0; 0: dropless, so nothing is dropped */
  int64_t capacityGroups; /* with a capacity: 1 or more, and 0 is N_MP; else 0 */
  int64_t minCapacity;    /* with a capacity: an expert has so many places per group at least */
  /* A schedule's name as moecclScheduleName gives it. NULL, "" or "auto": what MOECCL_SCHEDULE
   * says, or else the fastest as predicted for the number of tokens, by eighths of a power of two;
   * and none where the route needs none. Routes with a schedule need E to be a multiple of N_EP,
   * tokenDatatype to be datatype, and no moecclRouteWeightsRows. For training "baseline" needs N_MP
   * to be 1: its experts see each token N_MP times. */
  const char* schedule;
  /* Numbers that make up an expert, all shards together, for predictions; 0: its own time does not
   * count. */
  int64_t expertElements;
  /* 0: passes of a route with a schedule keep nothing for CombineBackward, which is InvalidUsage.
   */
  int training;
  /* 1: an automatic schedule learns from what passes took, as layers do (moe.h, what a layer
   * learns). Passes of the number of tokens that it began with are timed; others run under what it
   * has chosen. Hosts. */
  int learn;
  /* The fields below are for routes without a schedule. */
  /* The most rows that Begin brings to a rank, padding of `alignment` included; 0: any number.
   * Where more come, the ranks' experts share the room: none gets more than it needs, and those
   * that do not get all get equally much. An expert gives its room to sources in the same way, and
   * to the first tokens of each. Other choices are dropped: they bring nothing back, no other
   * weight changes for it, and moecclRows_t counts them. Begin exchanges twice as often for it. */
  int64_t maxRows;
  /* The rows of each expert begin at a multiple of this; 0 is 1. Rows between are zeros, and what
   * Combine is given for them does not count. Not with rowsByToken. */
  int64_t alignment;
  /* 1: one row of a token for each rank, as the head of this file says. Needs weights to be
   * moecclRouteWeightsRows or None. Hosts. */
  int rowsByToken;
  /* Float8e4m3 or Float8e5m2: the rows of Dispatch and of CombineBackward travel as float8, with
   * a scale for each 128 elements (moecclQuantizeRows); callers give and get tokenDatatype and
   * datatype. The rank's own rows are rounded as well, so results do not depend on where an expert
   * is. `hidden` is a multiple of 128. Latency mode has it too. Hosts. 0: rows travel as they are.
   */
  moecclDataType_t wire;
} moecclRouteConfig_t;

#define MOECCL_ROUTE_CONFIG_MAGIC 0x6d6f6572u
#define MOECCL_ROUTE_CONFIG_INITIALIZER                                                            \
  {                                                                                                \
    sizeof(moecclRouteConfig_t), MOECCL_ROUTE_CONFIG_MAGIC, MOECCL_VERSION, 1, 1,                  \
        moecclRouteWeightsCombine, moecclBfloat16, 1, (moecclDataType_t)0, 0, NULL, NULL, 0, NULL, \
        0, 0, 0, 0, NULL, 0, 1, 0, 0, 0, 0, (moecclDataType_t)0                                    \
  }

/* Makes a route on a grid. Collective over the grid's communicator, which must outlive the calls of
 * the route; the grid need not. Errors: InvalidArgument (a field of config; where one rank's is
 * wrong all ranks fail), InvalidUsage (ranks came with different configs), and those of
 * moecclAllGather. */
MOECCL_API moecclResult_t moecclRouteCreate(moecclGrid_t grid, const moecclRouteConfig_t* config,
                                            moecclRoute_t* route);
/* Frees a route. Not collective: calls that are queued on streams still run, and passes that are
 * open stay usable until they end. NULL is allowed. */
MOECCL_API moecclResult_t moecclRouteDestroy(moecclRoute_t route);

/* Begin with MOECCL_ROUTE_INFO_INITIALIZER. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  int firstExpert; /* of the rank's own */
  int localExperts;
  size_t tokenBytes; /* of what Dispatch takes and brings; outputs are `hidden` of datatype */
  int64_t maxRows;   /* so many rows can come; -1: unknown, in throughput mode without maxRows */
} moecclRouteInfo_t;

#define MOECCL_ROUTE_INFO_MAGIC 0x6d6f6969u
#define MOECCL_ROUTE_INFO_INITIALIZER \
  { sizeof(moecclRouteInfo_t), MOECCL_ROUTE_INFO_MAGIC, MOECCL_VERSION, 0, 0, 0, 0 }

/* Local. Errors: InvalidArgument. */
MOECCL_API moecclResult_t moecclRouteGetInfo(moecclRoute_t route, moecclRouteInfo_t* info);

/* What all ranks have brought to Begin since the route was made, or since the last call of this
 * with `reset` not 0. Collective. choices [E]: of each expert; rows [P]: that came to each rank.
 * Either may be NULL. Errors: those of moecclAllGather. */
MOECCL_API moecclResult_t moecclRouteGetLoads(moecclRoute_t route, int64_t* choices, int64_t* rows,
                                              int reset);

/* For people, in lines of text: which schedule or algorithm the last Begin took, and why; of a
 * route that learns also what it measured. `text` has room for *bytes, which becomes what the whole
 * text takes with its final zero; what does not fit is cut. Local. Errors: InvalidArgument,
 * InvalidUsage (no pass has begun). */
MOECCL_API moecclResult_t moecclRouteExplain(moecclRoute_t route, char* text, size_t* bytes);
/* The schedule of a route that has one, and all that was learned, as text to be kept with a
 * checkpoint. That of any rank will do. `text` and *bytes as above. Local. Errors: InvalidArgument,
 * InvalidUsage (no pass has begun; the route has no schedule). */
MOECCL_API moecclResult_t moecclRouteSave(moecclRoute_t route, char* text, size_t* bytes);
/* Goes on with what was saved of a route of the same config on a grid of the same shape, from the
 * next Begin on; passes that are open go on. Before the first Begin too: passes of the text's
 * number of tokens are then those that are timed. Without config.learn the route stays under that
 * schedule, so that a run can be repeated. Collective over the grid. Where it fails on one rank it
 * fails on all, and nothing is changed. Errors: InvalidArgument (NULL; the text was not made by
 * Save, or of another route; the message names what differs), InvalidUsage (ranks came with
 * different texts; config.schedule or MOECCL_SCHEDULE asks for another schedule; the route has
 * none), and those of moecclAllGather; RemoteError (one of these on another rank, which the message
 * names). */
MOECCL_API moecclResult_t moecclRouteRestore(moecclRoute_t route, const char* text);

/* Which experts each token chose. Begin with MOECCL_ROUTING_INITIALIZER. Both arrays are read until
 * moecclRouteBegin returns, once what is queued on its stream is complete. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  int64_t tokens;         /* of this rank; tokens * k is at most 2^31 - 1 */
  const int32_t* experts; /* [tokens][k]; -1: none. NULL for no tokens */
  /* [tokens][k], float32, or float64 where config.datatype is; NULL for no tokens, or with
   * moecclRouteWeightsNone. */
  const void* weights;
  /* In throughput mode: why this rank has no routing. Begin then fails on all ranks, with the first
   * MOECCL_REVOKE_TEXT_BYTES bytes of the text (UTF-8). NULL: it has one. */
  const char* error;
} moecclRouting_t;

#define MOECCL_ROUTING_MAGIC 0x6d6f6767u
#define MOECCL_ROUTING_INITIALIZER \
  { sizeof(moecclRouting_t), MOECCL_ROUTING_MAGIC, MOECCL_VERSION, 0, NULL, NULL, NULL }

/* Opens a pass. Collective in throughput mode: it returns when ranks have told each other what they
 * need to know, and where one rank's routing is wrong all ranks fail, with its text. On GPUs it
 * waits for the calls of the communicator before. In latency mode it is local, and waits for calls
 * of the pass whose memory it takes; on GPUs it waits for nothing, and both arrays are read in the
 * order of the stream. Errors: InvalidArgument (tokens, an expert that is none, weights that are
 * missing or not wanted), RemoteError (another rank's routing is wrong), InvalidUsage (a stream
 * that is being captured), and those of moecclAllToAllv. */
MOECCL_API moecclResult_t moecclRouteBegin(moecclRoute_t route, const moecclRouting_t* routing,
                                           moecclStream_t stream, moecclRoutePass_t* pass);
/* Closes a pass. Local, from any thread; calls that are queued on streams still run. NULL is
 * allowed. Errors: InvalidArgument (a pass that is none, or has ended). */
MOECCL_API moecclResult_t moecclPassEnd(moecclRoutePass_t pass);

/* The rows of a pass. Begin with MOECCL_ROWS_INITIALIZER. Arrays are the library's, and valid until
 * moecclPassEnd; in latency mode until the next Dispatch. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  int64_t rows; /* that come to this rank, padding included; -1: not known yet */
  /* [localExperts + 1]: where each expert's begin, and the last ends. With rowsByToken [2]: 0 and
   * `rows`. */
  const int64_t* begins;
  /* [localExperts][P], with rowsByToken [P]: how many come from each rank; with a capacity, how
   * many places are its. */
  const int64_t* counts;
  const float* weights;  /* [rows], with moecclRouteWeightsRows; else NULL. With rowsByToken
                          * [rows][k]: 0 where `experts` is -1 */
  const char* algorithm; /* or schedule, that brings them; a constant text */
  /* In latency mode on GPUs: where the device has `begins` [localExperts + 1], which each Dispatch
   * sets in the order of its stream; valid as long as the pass. Else NULL. */
  const int64_t* deviceBegins;
  /* Choices of this rank's tokens that got no place; ranks of an MP group count their own parts. */
  int64_t dropped;
  /* With rowsByToken [rows][k]: an expert's number among this rank's own, or -1: the token chose
   * none here, or one of another rank. Else NULL. */
  const int32_t* experts;
} moecclRows_t;

#define MOECCL_ROWS_MAGIC 0x6d6f7777u
#define MOECCL_ROWS_INITIALIZER                                                                   \
  {                                                                                               \
    sizeof(moecclRows_t), MOECCL_ROWS_MAGIC, MOECCL_VERSION, -1, NULL, NULL, NULL, NULL, NULL, 0, \
        NULL                                                                                      \
  }

/* Local. In latency mode `rows` is -1, and `begins` and `counts` are NULL, until Dispatch has been
 * called, for whose end it waits then. Errors: InvalidArgument, and that of a Dispatch that failed.
 */
MOECCL_API moecclResult_t moecclPassGetRows(moecclRoutePass_t pass, moecclRows_t* rows);

/* The four calls below are collective, and calls of the grid's communicator: all ranks make them in
 * the same order. moecclGroupStart does not note them, nor Begin, and none comes before GroupEnd.
 * `stream` is as there. Buffers are the caller's and do not overlap. On GPUs what is added up or
 * multiplied is aligned to its elements, and the second call of a pass can be captured. In latency
 * mode a call on another stream than the one before waits for that. A rank that fails by itself,
 * such as for want of memory, revokes the communicator. Errors: InvalidArgument (a buffer that is
 * NULL, or overlaps another), InvalidUsage (what latency mode has not; under a schedule
 * CombineBackward before the pass's first Combine), and those of moecclAllToAllv. */

/* tokens [tokens][tokenBytes] -> rows [rows][tokenBytes]. */
MOECCL_API moecclResult_t moecclPassDispatch(moecclRoutePass_t pass, const void* tokens, void* rows,
                                             moecclStream_t stream);
/* rows [rows][hidden] -> output [tokens][hidden] of config.datatype: each token's sum. A token
 * without a choice gets zeros. */
MOECCL_API moecclResult_t moecclPassCombine(moecclRoutePass_t pass, const void* rows, void* output,
                                            moecclStream_t stream);

/* The gradient of Combine. With moecclRouteWeightsCombine:
 *   outputGradients  [tokens][hidden]
 *   rows             [rows][hidden], as they were given to Combine
 *   rowGradients     [rows][hidden], set
 *   weightGradients  [tokens][k], set, 0 for a choice of none or one that was dropped; float32, or
 *                    float64 where config.datatype is
 * Of a route with a schedule it is that of the pass's last Combine. With other config.weights it is
 * a dispatch of outputGradients, and rows and weightGradients are NULL. */
MOECCL_API moecclResult_t moecclPassCombineBackward(moecclRoutePass_t pass,
                                                    const void* outputGradients, const void* rows,
                                                    void* rowGradients, void* weightGradients,
                                                    moecclStream_t stream);
/* The gradient of Dispatch: rowGradients [rows][hidden] of config.datatype, added up without
 * weights -> tokenGradients [tokens][hidden]. With moecclRouteWeightsRows also rowWeightGradients
 * [rows], with rowsByToken [rows][k], -> weightGradients [tokens][k], 0 for a choice of none or
 * one that was dropped; else both are NULL. */
MOECCL_API moecclResult_t moecclPassDispatchBackward(moecclRoutePass_t pass,
                                                     const void* rowGradients,
                                                     const float* rowWeightGradients,
                                                     void* tokenGradients, float* weightGradients,
                                                     moecclStream_t stream);

/* Rows of float8 for Dispatch, and back: `rows` rows of `hidden` elements, a multiple of 128. A row
 * of float8 is its elements, then a float32 scale for each 128 of them: the largest magnitude among
 * these, by the largest finite value of the type, at least 2^-126; 0 for zeros. An element is worth
 * its value times its scale. A group with a NaN or an infinity becomes NaN. Quantize reads float32,
 * float16 or bfloat16, and Dequantize writes it. Local. With a GPU communicator buffers are of its
 * device, and the work is enqueued on `stream`; else, or with comm NULL, they are of the host,
 * stream is NULL, and it is complete on return. Errors: InvalidArgument (types, sizes, buffers that
 * are NULL or overlap; on GPUs rows of float8 that do not begin at a multiple of 4, others at one
 * of their elements' size; a stream on hosts). */
MOECCL_API moecclResult_t moecclQuantizeRows(int64_t rows, int64_t hidden,
                                             moecclDataType_t fromType, const void* from,
                                             moecclDataType_t toType, void* to, moecclComm_t comm,
                                             moecclStream_t stream);
MOECCL_API moecclResult_t moecclDequantizeRows(int64_t rows, int64_t hidden,
                                               moecclDataType_t fromType, const void* from,
                                               moecclDataType_t toType, void* to, moecclComm_t comm,
                                               moecclStream_t stream);

/* moecclAllToAllv for who routes rows without a route, with bounds that are the same on all ranks:
 * no block has more than mostCount elements, and no rank sends or receives more than mostTotal in
 * all (0: unknown). By them the fastest algorithm is chosen, as predicted for blocks of mostTotal /
 * P elements or, where that is less or mostTotal is 0, mostCount: linear, pairwise, hierarchical or
 * bruck, which relay blocks without an exchange of counts. On GPUs a block that is relayed takes
 * mostCount elements of each message, and is priced so. Where P blocks of mostCount are more than
 * 64 MiB it is moecclAllToAllv. Errors: InvalidArgument (a count beyond a bound), RemoteError
 * (ranks came with different mostCount), and those of moecclAllToAllv. */
MOECCL_API moecclResult_t moecclAllToAllvBounded(const void* sendbuff, const size_t* sendCounts,
                                                 const size_t* sendDispls, void* recvbuff,
                                                 const size_t* recvCounts, const size_t* recvDispls,
                                                 size_t mostCount, size_t mostTotal,
                                                 moecclDataType_t datatype, moecclComm_t comm,
                                                 moecclStream_t stream);

#ifdef __cplusplus
}
#endif

#endif /* MOECCL_ROUTE_H_ */
