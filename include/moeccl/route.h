/* Token routing: brings each token's row to the experts that its gate chose, and what they made of
 * it back, without any capacity. Conventions as in moeccl.h; the text of an error is found with
 * moecclGetLastError(comm) of the grid's communicator, or of NULL.
 *
 *   moecclTokenRouteCreate            once: the shapes that stay
 *   moecclTokenRouteSet               each step: which experts each token chose
 *   moecclTokenRouteGetCounts         how many rows come, and which expert's they are
 *   moecclTokenRouteGetRankCounts     the same by the rank that they come from
 *   moecclTokenRouteDispatch          tokens -> rows
 *       (the caller's experts)
 *   moecclTokenRouteCombine           rows -> tokens
 *   moecclTokenRouteCombineBackward, moecclTokenRouteDispatchBackward
 *
 * Latency mode (config.mode), for decoding: a few tokens per rank, again and again. All is prepared
 * once, for config.maxTokens. Set is local then. Dispatch exchanges no counts: each message says
 * which rows it has. So how many rows come is known only when a Dispatch is over, and buffers of
 * rows have room for moecclTokenRouteGetMostRows of them. Calls allocate nothing. A rank sends one
 * message to its peer on each other node (node), or to each rank (rank, flat).
 *
 * Symbols:
 *   tokens  of this rank (ranks have as many as they like, also none)      k  config.topK
 *   hidden  elements of a token                                            E  config.experts
 *   rows    that come to this rank: one for each choice of one of its experts, by any token of any
 *           rank
 *
 * Experts: EP position j of the grid holds E / N_EP consecutive experts; where N_EP does not divide
 *   E, the first E mod N_EP positions hold one more. With N_ESP > 1 each expert is cut into N_ESP
 *   shards: every shard's rank gets the row, and what the shards return is added up. Ranks of an MP
 *   group route tokens of their own, like all ranks.
 *
 * Rows come by expert; of an expert by the rank that they come from; from a rank in the order of
 *   its tokens, whatever algorithm brings them.
 *
 * Sums: what comes back for a token is weighted and added up in float32: node by node of the
 *   experts' ranks, in a node by expert, of an expert by shard. Each node's sum is rounded to
 *   config.combineDatatype. Then the sums of nodes are added by their numbers, and rounded. So
 *   results have the same bits under every algorithm; but which NaN a sum is may differ.
 *
 * Algorithms: node (a token crosses to each node once, to this rank's peer there, which hands it
 *   on; sums are made there and cross once), rank (a token goes once to each rank that has one of
 *   its experts), flat (a row for each choice).
 *
 * On a GPU communicator all buffers, topkIndices and topkWeights too, are of its device; counts are
 * the host's. Set waits for the GPU, since the host must know the choices. The other calls enqueue.
 * Results have the same bits as on hosts. In latency mode Set enqueues too, and nothing waits: so
 * all of a step can be captured, once it has been made. What is no expert there, or an expert that
 * the token has already, counts as -1. Messages have the sizes of config.buckets, and a route has
 * memory for P * maxTokens tokens and twice the rows of moecclTokenRouteGetMostRows.
 */
#ifndef MOECCL_ROUTE_H_
#define MOECCL_ROUTE_H_

#include <moeccl/moeccl.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moecclTokenRoute* moecclTokenRoute_t;

/* Who multiplies what experts return by the weights of the choices. */
typedef enum {
  moecclRouteWeightsLibrary = 0, /* moecclTokenRouteCombine */
  moecclRouteWeightsCaller = 1,  /* the caller, before it: Set is given no weights */
  moecclRouteNumWeights = 2
} moecclRouteWeights_t;

typedef enum {
  moecclRouteThroughput = 0, /* counts first, then exactly the rows that there are */
  moecclRouteLatency = 1,
  moecclRouteNumModes = 2
} moecclRouteMode_t;

/* Begin with MOECCL_TOKEN_ROUTE_CONFIG_INITIALIZER, then set fields. The same on all ranks, which
 * compare them. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  int experts; /* E: 1 to 32768 */
  int topK;    /* k: 1 to 128 */
  moecclRouteWeights_t weights;
  /* Of the rows that Dispatch moves: float32, float16, bfloat16, float8e4m3 or float8e5m2. A row is
   * `hidden` elements and, of float8, a float32 scale for each 128 of them behind these (hidden
   * must be a multiple of 128 then). */
  moecclDataType_t datatype;
  /* Of what Combine and the backward passes move: float32, float16 or bfloat16. 0: `datatype` or,
   * where that is a float8, bfloat16. */
  moecclDataType_t combineDatatype;
  moecclRouteMode_t mode;
  int64_t hidden;
  /* The most tokens that a rank brings to a Set; 0: any number. In latency mode 1 to 1024. */
  int64_t maxTokens;
  /* "node", "rank" or "flat"; NULL or "": the fastest as predicted, for each Set anew, from what
   * all ranks bring to it; in latency mode once, for maxTokens that choose evenly. */
  const char* algorithm;
  /* Of latency mode on GPUs: numbers of tokens, ascending, up to maxTokens, which is the last one
   * whether or not it is among them. Messages have room for the least that is not below Set's
   * tokens: it must be the same on all ranks, which are told where it is not, as of other calls
   * that differ (moeccl.h, 9). Hosts send what there is. NULL and 0: maxTokens. */
  const int64_t* buckets;
  int64_t numBuckets;
} moecclTokenRouteConfig_t;

#define MOECCL_TOKEN_ROUTE_CONFIG_MAGIC 0x6d6f6572u
#define MOECCL_TOKEN_ROUTE_CONFIG_INITIALIZER                                                     \
  {                                                                                               \
    sizeof(moecclTokenRouteConfig_t), MOECCL_TOKEN_ROUTE_CONFIG_MAGIC, MOECCL_VERSION, 1, 1,      \
        moecclRouteWeightsLibrary, moecclBfloat16, (moecclDataType_t)0, moecclRouteThroughput, 1, \
        0, NULL, NULL, 0                                                                          \
  }

/* Makes a route on a grid. Collective over the grid's communicator, which must outlive the route's
 * calls; the grid need not. Errors: InvalidArgument (a field of config; where one rank's is wrong
 * all ranks fail), InvalidUsage (ranks came with different configs), and those of
 * moecclAllGather. */
MOECCL_API moecclResult_t moecclTokenRouteCreate(moecclGrid_t grid,
                                                 const moecclTokenRouteConfig_t* config,
                                                 moecclTokenRoute_t* route);
/* Makes another route of the same grid and config, which has no routing yet. So several routings
 * can be under way, each with the calls of its passes. Local: ranks need not make as many. Errors:
 * InvalidArgument (a route that is none). */
MOECCL_API moecclResult_t moecclTokenRouteCopy(moecclTokenRoute_t route, moecclTokenRoute_t* copy);
/* Frees a route. Not collective: calls of it that are queued on streams still run. NULL is allowed.
 * */
MOECCL_API moecclResult_t moecclTokenRouteDestroy(moecclTokenRoute_t route);

/* Tells which experts each token chose. Collective; returns when the ranks have told each other
 * what they need to know. What was queued on streams before keeps the routing that it was called
 * with.
 *   tokens       how many this rank has
 *   topkIndices  [tokens][k] experts; -1: none. May be NULL for no tokens
 *   topkWeights  [tokens][k]; NULL for no tokens, or with moecclRouteWeightsCaller
 * Both are read before it returns, once what is queued on `stream` is complete. On GPUs it also
 * waits for the communicator's calls before it. In latency mode it is local, a token names an
 * expert once at most, and it waits for calls of the routing before; on GPUs it waits for nothing,
 * and both are read in the order of the stream. Errors: InvalidArgument (an expert that is none,
 * more than maxTokens, tokens * k beyond 2^31 - 1, weights that are missing or not wanted),
 * InvalidUsage (a stream that is being captured), and those of moecclAllToAllv. */
MOECCL_API moecclResult_t moecclTokenRouteSet(moecclTokenRoute_t route, int64_t tokens,
                                              const int32_t* topkIndices, const float* topkWeights,
                                              moecclStream_t stream);

/* The rank's own experts, and how large a row of Dispatch is. Any pointer may be NULL. */
MOECCL_API moecclResult_t moecclTokenRouteGetShape(moecclTokenRoute_t route, int* firstExpert,
                                                   int* localExperts, size_t* rowBytes);
/* After Set: *rows, how many come to this rank; expertBegins [localExperts + 1], where each
 * expert's begin, and the number of rows. Either may be NULL. In latency mode after Dispatch, for
 * whose end it waits. Errors: InvalidUsage (before that). */
MOECCL_API moecclResult_t moecclTokenRouteGetCounts(moecclTokenRoute_t route, int64_t* rows,
                                                    int64_t* expertBegins);
/* counts [localExperts][P]: how many rows of each of the rank's experts come from each rank. Known
 * when GetCounts is; the same errors. */
MOECCL_API moecclResult_t moecclTokenRouteGetRankCounts(moecclTokenRoute_t route, int64_t* counts);
/* Of a route in latency mode on GPUs: *expertBegins, where the device has what GetCounts says. Each
 * Dispatch sets it, in the order of its stream; it is valid as long as the route. Errors:
 * InvalidUsage (another route). */
MOECCL_API moecclResult_t moecclTokenRouteGetDeviceCounts(moecclTokenRoute_t route,
                                                          const int64_t** expertBegins);
/* Of a route in latency mode: how many rows buffers of Dispatch and Combine have room for, since so
 * many can come. Errors: InvalidUsage (another mode, in which GetCounts says it). */
MOECCL_API moecclResult_t moecclTokenRouteGetMostRows(moecclTokenRoute_t route, int64_t* rows);
/* After Set: the algorithm that it has chosen; a constant text. */
MOECCL_API moecclResult_t moecclTokenRouteGetAlgorithm(moecclTokenRoute_t route,
                                                       const char** algorithm);

/* The four calls below are collective, and calls of the grid's communicator: all ranks make them in
 * the same order, after Set. moecclGroupStart does not note them, and none comes before GroupEnd.
 * `stream` is as there. Buffers do not overlap. On GPUs what is added up or multiplied is aligned
 * to its elements, and the second call of a routing can be captured. In latency mode Combine comes
 * after Dispatch, a call on another stream than the one before waits for that, and there are no
 * backward passes. Errors: InvalidArgument (a buffer that is NULL, or overlaps another),
 * InvalidUsage (before Set, or what latency mode has not), and those of moecclAllToAllv. */

/* tokens [tokens][row] -> rows [rows][row] of config.datatype. */
MOECCL_API moecclResult_t moecclTokenRouteDispatch(moecclTokenRoute_t route, const void* tokens,
                                                   void* rows, moecclStream_t stream);
/* rows [rows][hidden] -> output [tokens][hidden] of config.combineDatatype: each token's sum. A
 * token without a choice gets zeros. */
MOECCL_API moecclResult_t moecclTokenRouteCombine(moecclTokenRoute_t route, const void* rows,
                                                  void* output, moecclStream_t stream);

/* The gradient of Combine. With moecclRouteWeightsLibrary:
 *   outputGradients  [tokens][hidden]
 *   rows             [rows][hidden], as they were given to Combine
 *   rowGradients     [rows][hidden], set
 *   weightGradients  [tokens][k] float32, set, 0 for a choice of none
 * With moecclRouteWeightsCaller it is a dispatch of outputGradients, and rows and weightGradients
 * are NULL. */
MOECCL_API moecclResult_t moecclTokenRouteCombineBackward(moecclTokenRoute_t route,
                                                          const void* outputGradients,
                                                          const void* rows, void* rowGradients,
                                                          float* weightGradients,
                                                          moecclStream_t stream);
/* The gradient of Dispatch: Combine without weights. rowGradients [rows][hidden] -> tokenGradients
 * [tokens][hidden], of config.combineDatatype. */
MOECCL_API moecclResult_t moecclTokenRouteDispatchBackward(moecclTokenRoute_t route,
                                                           const void* rowGradients,
                                                           void* tokenGradients,
                                                           moecclStream_t stream);

/* What all ranks have brought to Set since the route was made, or since the last call of this with
 * `reset` not 0. Collective. choices [E]: of each expert; rows [P]: that came to each rank. Either
 * may be NULL. Errors: those of moecclAllGather. */
MOECCL_API moecclResult_t moecclTokenRouteGetLoads(moecclTokenRoute_t route, int64_t* choices,
                                                   int64_t* rows, int reset);

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
