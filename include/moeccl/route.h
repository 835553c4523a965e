/* Token routing: a route brings each token's row to the experts that the token chose, and brings
 * their results back. The caller computes gate and experts. Conventions as in moeccl.h, which also
 * has the MP, EP and ESP groups of a grid. moecclGetLastError has the text of an error: with the
 * grid's communicator, or with NULL if the handle was wrong.
 *
 *   moecclRouteCreate            once, with what stays the same
 *   moecclRouteBegin             opens a pass: which experts each token chose
 *   moecclPassGetRows            how many rows come, and for which expert
 *   moecclPassDispatch           tokens -> rows
 *       (the caller's experts)
 *   moecclPassCombine            rows -> tokens
 *   moecclPassCombineBackward    gradients of tokens -> gradients of rows
 *   moecclPassDispatchBackward   gradients of rows -> gradients of tokens
 *   moecclPassEnd                closes the pass
 *
 * Each pass may have another number of tokens on each rank, also 0. Several passes of a route may
 * be open at once, each with its own choices. The calls of an open pass may be repeated; a repeated
 * call sends only rows.
 *
 * Symbols:
 *   tokens  tokens of this rank        E  config.experts
 *   hidden  elements of a token        k  config.topK, choices of a token
 *   rows    rows of this rank's experts: one for each choice of one of them, by any token
 *
 * Experts: EP position j holds E / N_EP consecutive experts. If N_EP does not divide E, the first E
 * mod N_EP positions hold one more. With N_ESP > 1 each expert is cut into N_ESP shards. Every
 * shard's rank gets the row, and the results of the shards are added. Each rank brings its own
 * tokens, also within an MP group, unless config.sharedTokens is 1.
 *
 * Order of rows: by expert, then by source rank, then by the source's tokens. Every algorithm keeps
 * this order. Under a schedule an expert's rows have another order.
 *
 * Sums: a token's results are weighted and added in float32, first within each node. There the
 * order is by expert, and by shard within an expert. Each node's sum is rounded to config.datatype.
 * These sums are added in the order of the nodes, and rounded. Results have the same bits under
 * every algorithm; only the bits of a NaN may differ.
 *
 * Rows by token (config.rowsByToken): a rank gets one row of a token, however many of its experts
 * the token chose. moecclRows_t has the expert and the weight of each choice. The caller weights
 * and adds the results of the rank's experts. Combine adds what the ranks return.
 *
 * Schedules: a schedule is an order of collectives and computation (moecclSchedule_t in moe.h; Parm
 * III-B, PPMoE 3.3). A route has one in four cases: with a capacity, with tokens that MP groups
 * share (N_MP > 1), with config.schedule, and with float64. In Begin its ranks exchange the largest
 * number of tokens; with a capacity, messages have the size for that number. A token may name an
 * expert once only. The grid must outlive the passes.
 *
 * Capacity: the T tokens of an MP group are cut into config.capacityGroups groups. Each group has
 * topK * capacityFactor * T / (E * groups) places per expert, rounded as in moe.h. First choices
 * get places before second ones, in token order. A choice without a place is dropped. So choices
 * are dropped because of tokens of the same MP group only. An expert's rows are all of its places;
 * empty places are zero. Combine ignores what experts make of them, and CombineBackward sets zeros
 * there.
 *
 * Algorithms of routes without a schedule:
 *   node  a token crosses once to each node with an expert of it. There the peer of the source rank
 *         hands it on. Results are added on that node, and their sum crosses once.
 *   rank  a token goes once to each rank with an expert of it.
 *   flat  a token goes once for each choice.
 *
 * Throughput mode: ranks exchange the numbers of rows in Begin, then send exactly these rows.
 * Buffers of rows have room for the rows that moecclPassGetRows tells after Begin.
 *
 * Latency mode is for decoding, with few tokens per rank and step. Begin is local. Messages contain
 * their own numbers of rows, so the number of rows is known only after Dispatch. Buffers of rows
 * have room for maxRows rows (moecclRouteInfo_t). A token may name an expert once only. Combine
 * comes after Dispatch, and there are no gradients. Calls allocate no memory, except for a second
 * pass that is open at once. A rank sends one message to its peer on each other node (node), or to
 * each rank (rank, flat).
 *
 * GPUs: buffers, experts and weights are in memory of the communicator's device; counts are in host
 * memory. Results have the same bits as on hosts. Begin waits for the GPU, because the host reads
 * the choices; the other calls enqueue. In latency mode Begin enqueues too. A whole step can then
 * be captured into a CUDA graph, once it has run outside of one. There an unknown expert, or one
 * that the token has named before, counts as -1. Messages have the sizes of config.buckets. Each
 * open pass has memory for P * maxTokens tokens and 2 * maxRows rows.
 */
#ifndef MOECCL_ROUTE_H_
#define MOECCL_ROUTE_H_

#include <moeccl/moeccl.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moecclRoute* moecclRoute_t;
typedef struct moecclRoutePass* moecclRoutePass_t;

/* Who multiplies the experts' results by the weights of the choices. */
typedef enum {
  moecclRouteWeightsCombine = 0, /* moecclPassCombine */
  moecclRouteWeightsRows = 1,    /* the caller; weights arrive with rows. Throughput mode, hosts */
  moecclRouteWeightsNone = 2,    /* nobody; moecclRouting_t has no weights */
  moecclRouteNumWeights = 3
} moecclRouteWeights_t;

/* A route. Begin with MOECCL_ROUTE_CONFIG_INITIALIZER, and set experts, topK, hidden and datatype.
 * Every rank passes the same config; ranks compare their configs. Texts and arrays are read before
 * moecclRouteCreate returns. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  int experts; /* E: 1 to 32768 */
  int topK;    /* k: 1 to 128 */
  moecclRouteWeights_t weights;
  /* The type of outputs, of gradients, and of the rows that Combine takes: float32, float16 or
   * bfloat16. On hosts in throughput mode float64 too. */
  moecclDataType_t datatype;
  int64_t hidden; /* elements of a token: 1 to 2^31 - 1 */
  /* The type of tokens and rows of Dispatch. 0: that of `datatype`. Other values: float32, float16,
   * bfloat16, float8e4m3, float8e5m2. A row of float8 is `hidden` elements, a multiple of 128, and
   * behind them a float32 scale for each 128 elements (moecclQuantizeRows). */
  moecclDataType_t tokenDatatype;
  /* 1: the ranks of an MP group bring the same tokens. The tokens are padded and cut into N_MP
   * equal parts. Rank i of the group owns part i, and its choices of that part count. The output is
   * the same on all ranks of the group, and rowGradients count each token of the group once. With
   * N_MP 1 it has no effect. A route with a schedule and N_MP > 1 needs it. Throughput mode. */
  int sharedTokens;
  /* "throughput" or "latency"; NULL or "": throughput. */
  const char* mode;
  /* "node", "rank" or "flat". NULL or "": the fastest by prediction. In throughput mode each Begin
   * predicts it, from the choices of all ranks. In latency mode Create predicts it, for maxTokens
   * tokens with random choices. */
  const char* algorithm;
  /* The largest number of tokens of a rank in a Begin; 0: no limit. Latency mode: 1 to 1024. */
  int64_t maxTokens;
  /* Message sizes of latency mode on GPUs, in tokens: ascending, at most maxTokens, which is always
   * the last one. A message has room for the smallest bucket that holds Begin's tokens. That bucket
   * must be the same on all ranks. If it differs, they get the error of calls that differ
   * (moeccl.h, 9). NULL and 0: maxTokens alone. Hosts send only the rows that there are. */
  const int64_t* buckets;
  int64_t numBuckets;

  /* The fields below are for throughput mode, except `wire`. */
  double capacityFactor;  /* finite, above 0; 0: no capacity (dropless) */
  int64_t capacityGroups; /* with a capacity: 1 or more, or 0 for N_MP; without one: 0 */
  int64_t minCapacity;    /* with a capacity: the least places per expert and group; else 0 */
  /* The name of a schedule, as moecclScheduleName gives it. NULL, "" or "auto": the one that
   * MOECCL_SCHEDULE names. If it names none, the fastest by prediction for the number of tokens,
   * in steps of an eighth of a power of two. A route that needs no schedule then has none. With a
   * schedule, E must be a multiple of N_EP, and tokenDatatype 0 or `datatype`; weights must not be
   * moecclRouteWeightsRows. "baseline" with training needs N_MP 1, because its experts see each
   * token N_MP times. */
  const char* schedule;
  /* Parameters of an expert, all shards together, for predictions; 0: predictions leave out the
   * time of experts. */
  int64_t expertElements;
  /* 0: passes with a schedule keep nothing for gradients, and the Backward calls return
   * InvalidUsage. */
  int training;
  /* 1: an automatic schedule learns from measured times, as in layers (moe.h, Learning). The first
   * Begin sets a number of tokens; passes with that number are timed. Passes with other numbers run
   * under the schedule that was learned. Hosts. */
  int learn;
  /* The fields below are for routes without a schedule. */
  /* The most rows that a pass brings to a rank, padding of `alignment` included; 0: no limit. If
   * more would come, the rank's experts share the room, and those that need more than their share
   * get equally many rows. The sources of an expert share its rows likewise; a source's first
   * tokens come first. The other choices are dropped: they add nothing, other weights stay as they
   * are, and moecclRows_t counts them. Begin then has twice as many exchanges. */
  int64_t maxRows;
  /* Each expert's rows begin at a multiple of this, up to 4096; 0: 1. Rows between are zero, and so
   * are their gradients; Combine ignores them. Not with rowsByToken. */
  int64_t alignment;
  /* 1: one row of a token for each rank; see "Rows by token" above. `weights` must be
   * moecclRouteWeightsRows or moecclRouteWeightsNone. Hosts. */
  int rowsByToken;
  /* float8e4m3 or float8e5m2: rows of Dispatch and CombineBackward travel as float8, with a scale
   * for each 128 elements (moecclQuantizeRows). Buffers still have tokenDatatype and `datatype`,
   * and `hidden` is a multiple of 128. A rank's own rows are rounded too, so results do not depend
   * on the place of an expert. Hosts, in both modes. 0: rows travel as they are. */
  moecclDataType_t wire;
} moecclRouteConfig_t;

#define MOECCL_ROUTE_CONFIG_MAGIC 0x6d6f6572u
#define MOECCL_ROUTE_CONFIG_INITIALIZER                                                            \
  {                                                                                                \
    sizeof(moecclRouteConfig_t), MOECCL_ROUTE_CONFIG_MAGIC, MOECCL_VERSION, 1, 1,                  \
        moecclRouteWeightsCombine, moecclBfloat16, 1, (moecclDataType_t)0, 0, NULL, NULL, 0, NULL, \
        0, 0, 0, 0, NULL, 0, 1, 0, 0, 0, 0, (moecclDataType_t)0                                    \
  }

/* Makes a route on `grid`. The caller owns it. Collective over the grid's communicator, which must
 * outlive the route's calls. The grid may go before, except with a schedule. If one rank fails all
 * ranks fail.
 * Errors: InvalidArgument (grid, config or route NULL; a field of the config that is not as
 * described there). InvalidUsage (ranks came with different configs). RemoteError (another rank's
 * argument is wrong). Those of moecclAllGather. */
MOECCL_API moecclResult_t moecclRouteCreate(moecclGrid_t grid, const moecclRouteConfig_t* config,
                                            moecclRoute_t* route);
/* Frees a route. Local; NULL is allowed. Calls that are queued on streams still run, and open
 * passes stay usable until moecclPassEnd. Errors: InvalidArgument (no route). */
MOECCL_API moecclResult_t moecclRouteDestroy(moecclRoute_t route);

/* The caller's part of a route. Begin with MOECCL_ROUTE_INFO_INITIALIZER. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  int firstExpert; /* the caller holds localExperts experts from firstExpert on */
  int localExperts;
  size_t tokenBytes; /* of a token or row of Dispatch, scales included. Outputs have `hidden`
                        elements of config.datatype */
  int64_t maxRows;   /* the most rows of a pass; -1: no limit, in throughput mode without maxRows */
} moecclRouteInfo_t;

#define MOECCL_ROUTE_INFO_MAGIC 0x6d6f6969u
#define MOECCL_ROUTE_INFO_INITIALIZER \
  { sizeof(moecclRouteInfo_t), MOECCL_ROUTE_INFO_MAGIC, MOECCL_VERSION, 0, 0, 0, 0 }

/* Gets the caller's part of a route. Local. Errors: InvalidArgument (no route, info NULL). */
MOECCL_API moecclResult_t moecclRouteGetInfo(moecclRoute_t route, moecclRouteInfo_t* info);

/* Counts the choices and rows of all passes since the route was made, or since the last call with
 * `reset` not 0. `choices` [E]: of each expert, by tokens of all ranks. `rows` [P]: that came to
 * each rank. Both are the caller's, in host memory; NULL: not wanted. Collective over the grid's
 * communicator. Errors: InvalidArgument (no route), and those of moecclAllGather. */
MOECCL_API moecclResult_t moecclRouteGetLoads(moecclRoute_t route, int64_t* choices, int64_t* rows,
                                              int reset);

/* Explains in lines of text which schedule or algorithm the last Begin took, and why. A route that
 * learns adds its measured times. `text` is the caller's and has room for *bytes, which becomes the
 * size of the whole text with its final zero; a longer text is cut. `text` may be NULL if *bytes is
 * 0. Local. Errors: InvalidArgument (no route; bytes NULL, or text NULL with room), InvalidUsage
 * (no pass has begun). */
MOECCL_API moecclResult_t moecclRouteExplain(moecclRoute_t route, char* text, size_t* bytes);
/* Saves the schedule and all that was learned, as text to be kept with a checkpoint. The texts of
 * all ranks serve. `text` and *bytes as with Explain. Local. Errors: those of Explain, and
 * InvalidUsage (the route has no schedule). */
MOECCL_API moecclResult_t moecclRouteSave(moecclRoute_t route, char* text, size_t* bytes);
/* Restores the saved text of a route of the same config on a grid of the same shape. The next Begin
 * uses it; open passes stay as they are. Before the first Begin, passes with the text's number of
 * tokens become those that are timed. Without config.learn the route stays under the saved
 * schedule, so that a run can be repeated. `text` is read before the call returns. Collective over
 * the grid. If it fails on one rank it fails on all, and nothing is changed.
 * Errors: InvalidArgument (no route; text NULL; the text was not made by Save, or of another route;
 * the message names what differs). InvalidUsage (ranks came with different texts; config.schedule
 * or MOECCL_SCHEDULE asks for another schedule; the route has none). Those of moecclAllGather.
 * RemoteError (one of these on another rank, which the message names). */
MOECCL_API moecclResult_t moecclRouteRestore(moecclRoute_t route, const char* text);

/* The choices of a rank's tokens. Begin with MOECCL_ROUTING_INITIALIZER. Arrays are the caller's;
 * moecclRouteBegin says when they are read. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  int64_t tokens;         /* of this rank, 0 or more; tokens * k is at most 2^31 - 1 */
  const int32_t* experts; /* [tokens][k], 0 to E - 1; -1: no choice. NULL without tokens */
  /* [tokens][k], float32, or float64 if config.datatype is float64. NULL without tokens, and with
   * moecclRouteWeightsNone. */
  const void* weights;
  /* Throughput mode: why this rank has no choices, in UTF-8. Begin then fails on all ranks, with
   * the first MOECCL_REVOKE_TEXT_BYTES bytes of the text. NULL: this rank has them. */
  const char* error;
} moecclRouting_t;

#define MOECCL_ROUTING_MAGIC 0x6d6f6767u
#define MOECCL_ROUTING_INITIALIZER \
  { sizeof(moecclRouting_t), MOECCL_ROUTING_MAGIC, MOECCL_VERSION, 0, NULL, NULL, NULL }

/* Opens a pass, which the caller owns. The arrays of `routing` are read after earlier work of
 * `stream`, and before this returns.
 *
 *   throughput mode            collective: ranks exchange numbers of rows. If one rank's routing is
 *                              wrong, all ranks fail with its text. On GPUs it waits for the
 *                              communicator's earlier calls.
 *   latency mode, on hosts     local. It waits for calls of the ended pass whose memory it takes.
 *   latency mode, on GPUs      enqueued on `stream`; it waits for nothing. The arrays are read in
 *                              the order of the stream.
 *
 * Errors: InvalidArgument (no route; pass or routing NULL; tokens out of range; an expert that does
 * not exist; weights that are missing or not wanted; routing.error). RemoteError (another rank's
 * routing is wrong). InvalidUsage (the stream is being captured). Those of moecclAllToAllv. */
MOECCL_API moecclResult_t moecclRouteBegin(moecclRoute_t route, const moecclRouting_t* routing,
                                           moecclStream_t stream, moecclRoutePass_t* pass);
/* Closes a pass, after its last gradients; its memory serves a later one. Local, from any thread;
 * NULL is allowed. Calls that are queued on streams still run. Errors: InvalidArgument (no pass, or
 * it has ended). */
MOECCL_API moecclResult_t moecclPassEnd(moecclRoutePass_t pass);

/* The rows of a pass. Begin with MOECCL_ROWS_INITIALIZER. Arrays belong to the library. They are
 * valid until moecclPassEnd, in latency mode until the next Dispatch. They are in host memory,
 * except deviceBegins. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  int64_t rows; /* of this rank's experts, padding included; -1: not known yet */
  /* [localExperts + 1]: where each expert's rows begin, and where the last one's end. With
   * rowsByToken [2]: 0 and `rows`. */
  const int64_t* begins;
  /* [localExperts][P], with rowsByToken [P]: rows that come from each rank. With a capacity: places
   * that belong to each rank. */
  const int64_t* counts;
  const float* weights;  /* [rows], with moecclRouteWeightsRows; else NULL. With rowsByToken
                          * [rows][k]: 0 where `experts` is -1 */
  const char* algorithm; /* the algorithm or schedule that brings the rows; a constant text */
  /* Latency mode on GPUs: device memory [localExperts + 1] that each Dispatch sets to `begins`, in
   * the order of its stream. Valid until moecclPassEnd. Else NULL. */
  const int64_t* deviceBegins;
  /* Dropped choices of this rank's tokens. Ranks of an MP group that share tokens count those of
   * their own parts. */
  int64_t dropped;
  /* With rowsByToken [rows][k]: the number of each chosen expert among this rank's own. -1: no
   * choice, or an expert of another rank. Else NULL. */
  const int32_t* experts;
} moecclRows_t;

#define MOECCL_ROWS_MAGIC 0x6d6f7777u
#define MOECCL_ROWS_INITIALIZER                                                                   \
  {                                                                                               \
    sizeof(moecclRows_t), MOECCL_ROWS_MAGIC, MOECCL_VERSION, -1, NULL, NULL, NULL, NULL, NULL, 0, \
        NULL                                                                                      \
  }

/* Gets the rows of a pass. Local. In latency mode it waits for the end of Dispatch; before Dispatch
 * `rows` is -1, and `begins` and `counts` are NULL. Errors: InvalidArgument (no pass, rows NULL),
 * and that of a Dispatch that failed. */
MOECCL_API moecclResult_t moecclPassGetRows(moecclRoutePass_t pass, moecclRows_t* rows);

/* The four calls below are collective over the grid's communicator: all ranks make them in the same
 * order. A group (moecclGroupStart) does not note them, nor Begin: none may come inside one.
 * `stream` is as in moeccl.h, 6. Buffers are the caller's, must not overlap, and may be NULL if
 * they are empty.
 *
 * On GPUs buffers that are added or multiplied are aligned to their elements. Each call can be
 * captured into a CUDA graph from the second time on. In latency mode a call on another stream than
 * the call before waits for that call.
 *
 * A rank that fails alone, for instance without memory, revokes the communicator.
 *
 * Errors of each: InvalidArgument (no pass; a buffer that is NULL, or overlaps another; a wrong
 * stream). InvalidUsage (Combine before Dispatch, or gradients, in latency mode; gradients of a
 * route with a schedule and config.training 0; under a schedule CombineBackward before the pass's
 * first Combine). Those of moecclAllToAllv. */

/* Brings tokens to their experts: `tokens` [tokens][tokenBytes] -> `rows` [rows][tokenBytes]. In
 * latency mode `rows` has room for maxRows rows. */
MOECCL_API moecclResult_t moecclPassDispatch(moecclRoutePass_t pass, const void* tokens, void* rows,
                                             moecclStream_t stream);
/* Adds up the results for each token: `rows` [rows][hidden] -> `output` [tokens][hidden], both of
 * config.datatype. A token without a choice gets zeros. */
MOECCL_API moecclResult_t moecclPassCombine(moecclRoutePass_t pass, const void* rows, void* output,
                                            moecclStream_t stream);

/* Computes the gradients of Combine; under a schedule those of the pass's last Combine. Buffers
 * have config.datatype, weightGradients the type of the weights.
 *
 *   outputGradients  [tokens][hidden]
 *   rows             [rows][hidden], as they were given to Combine
 *   rowGradients     [rows][hidden], set
 *   weightGradients  [tokens][k], set; 0 for -1 and for dropped choices
 *
 * `rows` and `weightGradients` are for moecclRouteWeightsCombine. With other config.weights both
 * are NULL, and the call brings outputGradients to the experts without weights. */
MOECCL_API moecclResult_t moecclPassCombineBackward(moecclRoutePass_t pass,
                                                    const void* outputGradients, const void* rows,
                                                    void* rowGradients, void* weightGradients,
                                                    moecclStream_t stream);
/* Computes the gradients of Dispatch: a token's gradient is the sum of its rows' gradients, without
 * weights.
 *
 *   rowGradients        [rows][hidden] of config.datatype
 *   rowWeightGradients  [rows], with rowsByToken [rows][k]
 *   tokenGradients      [tokens][hidden] of config.datatype, set
 *   weightGradients     [tokens][k], set; 0 for -1 and for dropped choices
 *
 * The gradients of weights are for moecclRouteWeightsRows; with other config.weights both are
 * NULL. */
MOECCL_API moecclResult_t moecclPassDispatchBackward(moecclRoutePass_t pass,
                                                     const void* rowGradients,
                                                     const float* rowWeightGradients,
                                                     void* tokenGradients, float* weightGradients,
                                                     moecclStream_t stream);

/* Converts rows to float8 (Quantize), and back (Dequantize): `rows` rows of `hidden` elements, a
 * multiple of 128. The wide type is float32, float16 or bfloat16.
 *
 * A row of float8 is its elements, then a float32 scale for each 128 of them; an element is worth
 * its value times its scale. The scale is the group's largest magnitude divided by the type's
 * largest finite value. It is at least 2^-126, and 0 for a group of zeros. A group with a NaN or an
 * infinity becomes NaN.
 *
 * `from` and `to` are the caller's and must not overlap. Local. With a GPU communicator they are in
 * memory of its device, and the work is enqueued on `stream`. With a host communicator, or comm
 * NULL, they are in host memory, stream is NULL, and the work is complete on return.
 *
 * Errors: InvalidArgument (unknown or wrong types; sizes out of range; buffers that are NULL or
 * overlap; a stream on hosts). On GPUs also buffers that are not aligned: rows of float8 to 4
 * bytes, others to their elements. */
MOECCL_API moecclResult_t moecclQuantizeRows(int64_t rows, int64_t hidden,
                                             moecclDataType_t fromType, const void* from,
                                             moecclDataType_t toType, void* to, moecclComm_t comm,
                                             moecclStream_t stream);
MOECCL_API moecclResult_t moecclDequantizeRows(int64_t rows, int64_t hidden,
                                               moecclDataType_t fromType, const void* from,
                                               moecclDataType_t toType, void* to, moecclComm_t comm,
                                               moecclStream_t stream);

/* All-to-all-v with upper bounds that all ranks pass alike. Buffers, counts and displacements are
 * as in moecclAllToAllv.
 *
 *   mostCount  no block has more elements
 *   mostTotal  no rank sends or receives more elements in all; 0: unknown
 *
 * The bounds let the library take the fastest algorithm by prediction: linear, pairwise,
 * hierarchical or bruck. The last two relay blocks, here without an exchange of counts. Predictions
 * are for blocks of mostTotal / P elements, but at most mostCount. On GPUs a relayed block takes
 * mostCount elements of each message, and its price says so. If P blocks of mostCount are more than
 * 64 MiB, the call is moecclAllToAllv.
 *
 * Errors: InvalidArgument (a count above a bound), RemoteError (ranks came with different
 * mostCount), and those of moecclAllToAllv. */
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
