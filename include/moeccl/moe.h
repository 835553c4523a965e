/* The reference Mixture-of-Experts layer: a gate, experts and the exchanges between them, on a grid
 * of MP, EP and ESP groups. moecclMoeLayerCreate is in libmoeccl-moe. Conventions as in moeccl.h;
 * moecclGetLastError(NULL) has the text of an error.
 *
 * The function is the same under every schedule up to rounding. Symbols as in Parm (table I):
 *
 *   B L  tokens of one MP group       M  embedding size       H  hidden size of an expert
 *   E    experts                      k  experts per token    f  capacity factor
 *
 * Gate: as in moecclMoeGate_t for the config's kind. Logits = token x gate. 32 products at a time
 * are summed in the tokens' type, and these sums in double, in the order of the embedding. The
 * lower of two experts with equal logits is chosen. So a token's choices depend only on the token
 * and its random numbers.
 *
 * Random numbers are functions of the config's seed, the step (moecclMoeLayerSetStep), the number
 * of the MP group's batch and the token's index in it. Batches are numbered by world rank / N_MP,
 * from moecclMoeLayerSetFirstBatch's number on. So the numbers are the same under every schedule
 * and on any number of ranks, whether they take batches at once or one after the other. Only layers
 * for training draw them (config.training).
 *
 * Capacity: the tokens of an MP group, padded to a multiple of g and of N_MP, are cut into g equal
 * consecutive capacity groups (GShard's local groups). The padding lies at the end; it goes nowhere
 * and does not count. Each group has T / g places per expert. T is ceil(k f B L / E); a value
 * within 1e-12 of a whole number, relatively, counts as that number. It is at least g times
 * config.minCapacity, and rounded up to a multiple of g and of N_MP, but never above the number of
 * padded tokens. Places go to first choices before second ones, in token order. With expert choice
 * they go to the tokens that the expert takes. A choice without a place is dropped, and contributes
 * zero. The token's other choices stay as they are, or with config.renormalize have greater
 * weights. Dropless layers (config.dropless) have no capacity: every choice has a place.
 *
 * Expert: activation(token x w1 + b1) x w2 + b2. With moecclMoeSwiglu token x w1 + b1 has two
 * halves, and its activation is silu(first) times the second (Shazeer 2020). A row of w1 is one of
 * gate_proj, as others call it, and behind it one of up_proj.
 *
 * Residual branch (config.residual; DeepSpeed-MoE 4.1, Residual-MoE, and PR-MoE if layers differ in
 * experts): one more such expert, of hidden size R, that every token passes, with weight 1.
 *
 * Output: the sum over a token's choices of weight times expert output, and the output of the
 * residual branch.
 *
 * Auxiliary loss: the gate's, over the whole batch of the MP group, from choices before capacity.
 *
 * On GPUs: a layer of a grid on GPUs (moeccl.h, 9) takes tokens, weights and gradients, the bias of
 * a gate too, in memory of that GPU. They are of any datatype but float64. Its streams are
 * cudaStream_t; NULL is the legacy default stream. A pass is enqueued and returns; memory and
 * weights belong to it until the stream has passed it. Passes of a layer come one after another,
 * whatever their streams. Forward waits in the middle of dropless layers and of PPMoE, which must
 * know how many tokens each expert gets. No timeout ends that, only an abort of the grid and its
 * communicator by another thread. If a dropless layer's experts get more tokens than ever before,
 * Forward may wait for all of the GPU. A pass cannot be captured into a CUDA graph.
 *
 * Gradients: those of one scalar loss, the sum over MP groups of a loss of the group's output
 * (whose gradient the caller brings) and auxiliaryLossScale times the group's auxiliary loss.
 * Choices, places, counts of choices and random numbers are constants; weights and probabilities
 * are not. A dropped choice counts in the sum that weights are divided by, and gives its expert
 * nothing. The slope of relu at 0 is 0.
 */
#ifndef MOECCL_MOE_H_
#define MOECCL_MOE_H_

#include <moeccl/moeccl.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moecclMoeLayer* moecclMoeLayer_t;

typedef enum {
  moecclMoeGelu = 0, /* x (1 + erf(x / sqrt 2)) / 2, without the tanh approximation */
  moecclMoeRelu = 1,
  moecclMoeSwiglu = 2, /* silu(gate) x up, silu(x) = x / (1 + exp(-x)); not on GPUs */
  moecclMoeNumActivations = 3
} moecclMoeActivation_t;

/* The order of collectives and computation in one layer (Parm III-B, figure 3; PPMoE 3.3). */
typedef enum {
  moecclScheduleAuto = 0,     /* the fastest by prediction: the first of moecclSelect */
  moecclScheduleBaseline = 1, /* ESP-AllGather, gate, EP-AlltoAll, experts, ESP-AllReduce,
                                 ESP-Split, EP-AlltoAll: every rank of an MP group computes all of
                                 the group's tokens */
  moecclScheduleS1 = 2,       /* MP-Split of the tokens, gate, dispatch, experts, combine,
                                 MP-AllGather. capacityGroups must be a multiple of N_MP */
  moecclScheduleS2 = 3,       /* gate, MP-Split of the capacity, dispatch, experts, combine and
                                 MP-AllGather at once (SAA) */
  moecclSchedulePpMoe = 4,    /* gate, own experts' tokens by index, experts one after another,
                                 AllReduce (PPMoE 3.3). N_MP must be P: the MP group holds all
                                 experts */
  moecclNumSchedules = 5
} moecclSchedule_t;

/* The name of a schedule as in MOECCL_SCHEDULE: "auto", "baseline", "S1", ...; NULL after the last
 * one. */
MOECCL_API const char* moecclScheduleName(moecclSchedule_t schedule);

/* How tokens choose experts, or experts tokens; any kind under any schedule. p = softmax(logits).
 * CV is the standard deviation over all experts divided by the mean.
 *
 * Softmax       The k experts of the largest logits. Weight: with k = 1 p, else the k p divided by
 *               their sum (GShard). Loss: E times the sum over experts of (share of tokens whose
 *               first choice it is) x (mean p) (Switch 2.2, equations 4 to 6).
 * NoisyTopK     The k largest H = logits + normal x softplus(token x noise), where normal is a
 *               random number, 0 in inference; weight: the softmax of the k H. Loss:
 *               importanceWeight CV(importance)^2 + loadWeight CV(load)^2 (Shazeer et al. 2017,
 *               equations 3 to 11).
 * GShard        The two largest logits, weights as with softmax; topK must be 2. The second choice
 *               is made with probability min(1, 2 x its weight), in inference always. A choice that
 *               is not made takes no place and does not count. Loss: that of softmax / E^2, the
 *               mean over experts (Lepikhin et al. 2020, algorithm 1, lines 13 and 19).
 * Switch        As softmax with k = 1; topK must be 1. Each element of the gate's input is
 *               multiplied by a random number, uniform from 1 - jitter to 1 + jitter; in inference
 *               by 1 (Fedus et al. 2021, 2.1 and 2.4).
 * ExpertChoice  In each capacity group every expert takes the tokens of its largest p (in the
 *               layer's datatype; of equal ones the earlier), as many as it has places. Weight: p.
 *               So a token has from 0 to E experts, k f on average; topK has no other meaning. No
 *               loss, nothing is dropped (Zhou et al. 2022, 3.2).
 * Sigmoid       s = sigmoid(logits). Experts lie in expertGroups equal consecutive groups. A token
 *               goes to the topGroups groups where the two largest s + bias have the largest sum.
 *               In them it goes to the k experts of the largest s + bias. Weight: routingScale s /
 *               sum of the k s. Each sequence has sequenceTokens tokens and a loss: the sum over
 *               experts of (E / k) (choices of it / tokens) x (mean of s / sum of all s). Loss: the
 *               mean over sequences. See DeepSeek-V3 2.1.2, equations 12 to 20.
 *               moecclMoeUpdateBias balances the bias.
 */
typedef enum {
  moecclGateSoftmax = 0,
  moecclGateNoisyTopK = 1,
  moecclGateGShard = 2,
  moecclGateSwitch = 3,
  moecclGateExpertChoice = 4,
  moecclGateSigmoid = 5,
  moecclNumGates = 6
} moecclMoeGate_t;

typedef struct {
  double jitter; /* from 0 to 1 */
} moecclSwitchGate_t;
typedef struct {
  double importanceWeight; /* 0 or more, like loadWeight; both 0: 1 each */
  double loadWeight;
} moecclNoisyTopKGate_t;
typedef struct {
  int64_t expertGroups;   /* a divisor of experts; 0: 1 */
  int64_t topGroups;      /* of at least k experts; 0: expertGroups */
  double routingScale;    /* above 0; 0: 1 */
  int64_t sequenceTokens; /* per sequence; the last may be shorter; 0: B L */
} moecclSigmoidGate_t;

/* A layer. Begin with MOECCL_MOE_CONFIG_INITIALIZER, and set tokens, embedding, hidden, experts,
 * topK and capacityFactor or dropless. Every rank of the grid passes the same config. The layers of
 * a model may differ: PR-MoE's pyramid has more experts in later layers, each layer on the grid
 * that suits its number (DeepSpeed-MoE 4.1.2, 4.1.3). */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  int64_t tokens;                   /* B L, of one MP group: 0 or more, divisible by nothing */
  int64_t embedding;                /* M, 1 or more */
  int64_t hidden;                   /* H, a multiple of N_ESP */
  int64_t experts;                  /* E, a multiple of N_EP */
  int64_t topK;                     /* k, from 1 to experts */
  double capacityFactor;            /* f, finite, above 0; dropless: 0 */
  int64_t capacityGroups;           /* g; 0: N_MP; dropless: 0 */
  moecclMoeActivation_t activation; /* of the experts */
  /* The type of tokens and weights: moecclFloat32, Float64 (not on GPUs), Float16 or Bfloat16.
   * 16-bit types are computed with in float32, and rounded when stored. Stored are rows, results of
   * experts, each token's sum (under PPMoE after each expert), terms of gradients, and on GPUs
   * hidden values of experts. */
  moecclDataType_t datatype;
  moecclSchedule_t schedule; /* MOECCL_SCHEDULE (auto, baseline, S1, S2,
                                PPMoE) overrides it */
  /* 1: Forward keeps what Backward needs. In elements of each rank, beside Forward's own memory,
   * that is tokens M and tokens E doubles, with noisy top-k tokens 2 E (S1: 1 / N_MP of it). To
   * this add rows that its experts got, and rows that came back:
   *
   *   baseline  E T M N_ESP                + E T M
   *   S1        E T M N_ESP / N_MP         + E T M / N_MP
   *   S2        E T M max(1, N_ESP / N_MP) + E T M
   *   PPMoE     results of its experts, at most localExperts T M, and tokens (M + k), with expert
   *             choice tokens (M + E)
   *
   * Numbers per choice take less. Hidden values are computed again. Dropless layers keep the rows
   * that there are, instead of E T of each batch. The residual branch keeps tokens M / N_MP. */
  int training;
  /* S1 cuts each rank's tokens into so many chunks, and runs dispatch, experts, combine and
   * MP-AllGather of different chunks at once. That hides the MP-AllGather as SAA does, at less
   * volume. Without capacity the baseline cuts the tokens of an MP group likewise. With a capacity
   * it must divide capacityGroups / N_MP. 1: no chunks. 0: 1, 2, 4 or 8, the fastest by prediction
   * (model.h). Results differ only by rounding. Exchanges go on while experts compute on GPUs and
   * if the communicator has a progress thread, else between two experts. Other schedules ignore it.
   * Dropless: up to 64, and on GPUs 0 is 1. */
  int64_t chunks;
  moecclMoeGate_t gate;
  int64_t seed; /* of random numbers; any */
  /* Fields of one kind of gate each; with any other kind they must be 0. */
  moecclSwitchGate_t switchGate;
  moecclNoisyTopKGate_t noisyTopK;
  moecclSigmoidGate_t sigmoid;
  /* 1: no capacity, no choice is dropped. Ranks tell each other how many tokens each expert gets,
   * and then exchange just these. Memory grows with the rows that arrive, and is kept; for one hot
   * expert these are all tokens of all ranks. ExpertChoice must have a capacity, because its
   * experts choose as many tokens as they have places. So must S2, which splits the capacity. */
  int dropless;
  /* R, hidden size of the residual branch; 0: none. The paper's has as many hidden units as an
   * expert, and topK 1. */
  int64_t residual;
  /* 1: a layer with an automatic schedule learns: see moecclMoeLayerExplainChoice. 0: it stays
   * under the schedule that it was made with. GPUs: 0. */
  int64_t learn;
  /* T / g is at least this, if there are as many tokens; DeepSpeed's min_capacity. Dropless: 0. For
   * evaluation with another capacity make another layer, with training 0. */
  int64_t minCapacity;
  /* 1: if choices of a token are dropped, the weights of the kept ones are scaled to the sum of
   * all, as with DeepSpeed's gates. One choice of moecclGateSoftmax or moecclGateSwitch keeps its
   * weight, a probability. 0: weights stay as they are. Dropless, and with ExpertChoice: 0. */
  int64_t renormalize;
  /* How rows come to the experts of a dropless layer. 1: by token routing (route.h): a token
   * crosses to a node once, and the results of that node's experts return as one sum. -1: a row for
   * each choice, by moecclAllToAllv. 0: the faster one by prediction; on one node, with topK 1, and
   * on GPUs, -1. Token routing takes float32, float16 and bfloat16, up to 128 choices (topK) and
   * 32768 experts, under the baseline and S1. Sums are then in float32, by node, expert and shard.
   * On GPUs a pass then waits for the ranks' exchange of choices, too. */
  int64_t tokenRouting;
} moecclMoeConfig_t;

#define MOECCL_MOE_CONFIG_MAGIC 0x6d6f6c63u
#define MOECCL_MOE_CONFIG_INITIALIZER                                                           \
  {                                                                                             \
    sizeof(moecclMoeConfig_t), MOECCL_MOE_CONFIG_MAGIC, MOECCL_VERSION, -1, 0, 0, 0, 0, 0.0, 0, \
        moecclMoeGelu, moecclFloat32, moecclScheduleAuto, 0, 0, moecclGateSoftmax, 0, {0.0},    \
        {0.0, 0.0}, {0, 0, 0.0, 0}, 0, 0, 0, 0, 0, 0                                            \
  }

/* The caller's part of a layer. Begin with MOECCL_MOE_SHAPES_INITIALIZER. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  /* The caller holds localExperts experts from firstExpert on, and of each localHidden hidden units
   * from firstHidden on. */
  int64_t firstExpert;
  int64_t localExperts;
  int64_t firstHidden;
  int64_t localHidden;
  int64_t capacity;          /* T: places per expert for the tokens of one MP group; dropless: 0 */
  int64_t capacityGroups;    /* g; dropless: 0 */
  moecclSchedule_t schedule; /* of the next Forward; with config.learn of the last; never auto */
  int64_t chunks;            /* into which the schedule cuts tokens; 1: it does not */
  int64_t tokenRouting;      /* 1: rows go by token routing; 0: they do not */
} moecclMoeShapes_t;

#define MOECCL_MOE_SHAPES_MAGIC 0x6d6f7368u
#define MOECCL_MOE_SHAPES_INITIALIZER                                                     \
  {                                                                                       \
    sizeof(moecclMoeShapes_t), MOECCL_MOE_SHAPES_MAGIC, MOECCL_VERSION, 0, 0, 0, 0, 0, 0, \
        moecclScheduleAuto, 0, 0                                                          \
  }

/* Weights, row-major, of config.datatype. Begin with MOECCL_MOE_WEIGHTS_INITIALIZER. b2 is the same
 * on all shards of an expert and is added once. With moecclMoeSwiglu rows of w1, b1, residualW1 and
 * residualB1 are twice as long: a shard's columns of the gate, then its columns of what that
 * multiplies. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  const void* gate;   /* [M][E], the same on every rank */
  const void* w1;     /* [localExperts][M][localHidden] */
  const void* b1;     /* [localExperts][localHidden]; NULL: zero */
  const void* w2;     /* [localExperts][localHidden][M] */
  const void* b2;     /* [localExperts][M]; NULL: zero */
  const void* noise;  /* [M][E], the same on every rank, with NoisyTopK; else NULL */
  const double* bias; /* [E], the same on every rank, with Sigmoid, NULL: zero; else NULL */
  /* Weights of the residual branch, all NULL without one; the same on every rank. Each rank
   * computes its share of its MP group's tokens. That takes N_MP times the weights of a branch
   * whose hidden units are split. In S1's and PPMoE's forward pass it adds no exchange. */
  const void* residualW1; /* [M][R] */
  const void* residualB1; /* [R]; NULL: zero */
  const void* residualW2; /* [R][M] */
  const void* residualB2; /* [M]; NULL: zero */
} moecclMoeWeights_t;

#define MOECCL_MOE_WEIGHTS_MAGIC 0x6d6f7774u
#define MOECCL_MOE_WEIGHTS_INITIALIZER                                                            \
  {                                                                                               \
    sizeof(moecclMoeWeights_t), MOECCL_MOE_WEIGHTS_MAGIC, MOECCL_VERSION, NULL, NULL, NULL, NULL, \
        NULL, NULL, NULL, NULL, NULL, NULL, NULL                                                  \
  }

/* Buffers to which Backward adds the gradients of the caller's weights, in the shapes and the
 * datatype of moecclMoeWeights_t. Begin with MOECCL_MOE_GRADIENTS_INITIALIZER; NULL: that gradient
 * is not wanted.
 *
 *   w1, b1, w2, b2: over the tokens of all ranks, each token once. Nothing is left to reduce. b2's
 *     is the same on all shards of an expert.
 *   gate, noise, residual...: over the tokens of the caller's MP group, the same on its ranks. Sum
 *     them over the MP groups, as for every weight of the model that all of them hold.
 */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  void* gate;
  void* w1;
  void* b1;
  void* w2;
  void* b2;
  void* noise;
  void* residualW1;
  void* residualB1;
  void* residualW2;
  void* residualB2;
} moecclMoeGradients_t;

#define MOECCL_MOE_GRADIENTS_MAGIC 0x6d6f6772u
#define MOECCL_MOE_GRADIENTS_INITIALIZER                                                        \
  {                                                                                             \
    sizeof(moecclMoeGradients_t), MOECCL_MOE_GRADIENTS_MAGIC, MOECCL_VERSION, NULL, NULL, NULL, \
        NULL, NULL, NULL, NULL, NULL, NULL, NULL                                                \
  }

/* Counts of the caller's MP group in the last Forward; the same on all ranks of the group and under
 * every schedule. Begin with MOECCL_MOE_STATS_INITIALIZER. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  double auxiliaryLoss;   /* 0 without tokens */
  int64_t droppedChoices; /* choices that found no place; dropless: 0 */
  /* [E] choices per expert, before capacity and with a place. They belong to the layer and are
   * valid until its next Forward or Destroy. */
  const int64_t* assigned;
  const int64_t* kept;
  double imbalance; /* the largest of assigned / their mean: 1 to E, 1 is even; 0 without choices */
} moecclMoeStats_t;

#define MOECCL_MOE_STATS_MAGIC 0x6d6f7374u
#define MOECCL_MOE_STATS_INITIALIZER \
  { sizeof(moecclMoeStats_t), MOECCL_MOE_STATS_MAGIC, MOECCL_VERSION, 0.0, 0, NULL, NULL, 0.0 }

/* Makes a layer on `grid`, which must outlive it. It has all the memory that Forward and Backward
 * need for tokens, except rows of a dropless layer's experts. Collective over the grid; if it fails
 * on one rank it fails on all. The algorithms of its collectives are those of the grid's
 * communicator. Matrix products run on as many threads as OpenBLAS is set to, in every rank; if
 * ranks share cores, set OPENBLAS_NUM_THREADS=1.
 * Errors: InvalidArgument (a NULL argument; a field of the config that is not as described there;
 * MOECCL_SCHEDULE names no schedule; a datatype or an activation that GPUs do not have).
 * InvalidUsage (ranks came with different configs). SystemError (not enough memory; no cuBLAS).
 * UnhandledCudaError (not enough memory of the GPU). Those of moecclAllGather. RemoteError (one of
 * these on another rank, which the message names). Passing NULL for `grid` on one rank only makes
 * the other ranks wait for the timeout. */
MOECCL_API moecclResult_t moecclMoeLayerCreate(moecclGrid_t grid, const moecclMoeConfig_t* config,
                                               moecclMoeLayer_t* layer);
/* Frees a layer; local, NULL is allowed. On GPUs it waits for the layer's passes. */
MOECCL_API moecclResult_t moecclMoeLayerDestroy(moecclMoeLayer_t layer);

/* Gets the caller's experts, and its part of them. Errors: InvalidArgument. */
MOECCL_API moecclResult_t moecclMoeLayerGetShapes(moecclMoeLayer_t layer,
                                                  moecclMoeShapes_t* shapes);

/* Names the caller's weights. They stay the caller's: the layer keeps the pointers, reads through
 * them in every Forward and never writes, so an optimiser may update them in place between two
 * Forwards. They must stay valid until the next SetWeights or Destroy. gate, w1 and w2 must be set;
 * noise and bias are as the layer's gate needs them. residualW1 and residualW2 must be set with a
 * residual branch; without one all of its weights are NULL. Local. Errors: InvalidArgument. */
MOECCL_API moecclResult_t moecclMoeLayerSetWeights(moecclMoeLayer_t layer,
                                                   const moecclMoeWeights_t* weights);

/* Names the memory for the gradients of the caller's weights. It stays the caller's: every Backward
 * adds to it, as PyTorch does to .grad, so that several passes make one step; the caller zeroes it
 * between steps. It must stay valid until the next SetGradients or Destroy. Without this call
 * Backward gives no gradients of weights. Local. Errors: InvalidArgument (also: noise without
 * moecclGateNoisyTopK, a residual gradient without config.residual), InvalidUsage (config.training
 * is 0). */
MOECCL_API moecclResult_t moecclMoeLayerSetGradients(moecclMoeLayer_t layer,
                                                     const moecclMoeGradients_t* gradients);

/* Sets the step of the next Forward, so that a resumed training draws the random numbers of an
 * uninterrupted one. It must be the same on every rank, which is not checked. The first Forward of
 * a layer has step 0; each completed one adds 1. Local. Errors: InvalidArgument (layer NULL, step
 * below 0), InvalidUsage (config.training is 0: nothing is random). */
MOECCL_API moecclResult_t moecclMoeLayerSetStep(moecclMoeLayer_t layer, int64_t step);

/* Sets the number of the first MP group's batch in later Forwards, 0 by default; group i's is
 * firstBatch + i. It must be the same on every rank, which is not checked. With it a few ranks can
 * take one after the other the batches that more ranks take at once, as when gradients of several
 * passes make one step. Call this and SetStep before each pass: with G groups, pass i of a step
 * begins at i G. Local. Errors: InvalidArgument (layer NULL, firstBatch below 0), InvalidUsage
 * (config.training is 0). */
MOECCL_API moecclResult_t moecclMoeLayerSetFirstBatch(moecclMoeLayer_t layer, int64_t firstBatch);

/* Runs one forward pass (Parm figures 3(a) (baseline), 3(b) (S1) and 3(c) (S2); PPMoE 3.3).
 * `input` [tokens][M] and `output` [tokens][M] are the same on all ranks of an MP group; both are
 * the caller's, and may be one buffer. Collective over the grid.
 * Outputs, and Backward's results, have the same bits on these ranks, except under
 * moecclScheduleBaseline. There each rank of an MP group computes its own, and some BLAS kernels
 * round a row by its place in the matrix.
 * On host memory the caller's own thread computes between the collectives: Forward first waits for
 * the stream's earlier work, and is complete when it returns, with a stream as without. On GPUs it
 * is queued behind the stream's earlier work.
 * Errors: InvalidArgument (layer NULL, input or output NULL with tokens > 0). InvalidUsage (no
 * weights yet; the stream is being captured). SystemError (no memory for the rows of a dropless
 * layer). UnhandledCudaError (the text has the call, and the exchange that it came after). Those of
 * the collectives of the schedule. After SystemError and UnhandledCudaError peers wait for the
 * timeout, or until the grid (moecclGridAbort) and its communicator are aborted. */
MOECCL_API moecclResult_t moecclMoeForward(moecclMoeLayer_t layer, const void* input, void* output,
                                           moecclStream_t stream);

/* Runs the backward pass of the last Forward, whose weights must not have changed since.
 * `outputGradient` [tokens][M] is the loss's gradient by Forward's output, `auxiliaryLossScale`
 * that by the auxiliary loss. Both are the same on all ranks of an MP group; they are not compared.
 * `inputGradient` [tokens][M] is set, not added to, and the same on all ranks of an MP group. Both
 * buffers are the caller's, and may be one. Gradients of weights are added to SetGradients'
 * buffers; after an error they are undefined. May be called again for the same Forward. Collective
 * over the grid; streams as with Forward.
 * Exchanges are Forward's mirrored: dispatch <-> combine, MP-Split <-> MP-AllGather, SAA <->
 * dispatch with MP-Split.
 * Errors: InvalidArgument (layer NULL, a buffer NULL with tokens > 0). InvalidUsage
 * (config.training is 0; no Forward has completed, or the last one failed; the stream is being
 * captured). UnhandledCudaError as with Forward. Those of the collectives of the schedule. */
MOECCL_API moecclResult_t moecclMoeBackward(moecclMoeLayer_t layer, const void* outputGradient,
                                            double auxiliaryLossScale, void* inputGradient,
                                            moecclStream_t stream);

/* Balances the bias of a Sigmoid gate after a step (DeepSeek-V3 2.1.2), by the choices in all
 * Forwards of all ranks since the last UpdateBias. It adds `speed` for experts that had fewer than
 * the mean, and subtracts it for those that had more. bias [E] is the caller's: the array of
 * weights.bias, or a copy. It must be the same on all ranks, and is so afterwards. Collective over
 * the grid. On GPUs too it is complete when it returns; it waits for the layer's passes first.
 * Errors: InvalidArgument (layer or bias NULL, speed negative or not finite), InvalidUsage (the
 * gate is another), and those of moecclAllReduce. */
MOECCL_API moecclResult_t moecclMoeUpdateBias(moecclMoeLayer_t layer, double* bias, double speed);

/* Gets the counts of the last Forward. On GPUs it waits for that, and not for later work on the
 * stream. Local. Errors: InvalidArgument, InvalidUsage (no Forward has completed, or the last one
 * failed; on GPUs: been enqueued), UnhandledCudaError. */
MOECCL_API moecclResult_t moecclMoeGetStats(moecclMoeLayer_t layer, moecclMoeStats_t* stats);

/* Learning: a layer, or a route with a schedule (route.h), with config.learn.
 *
 * A step is a Forward or a pass of a route, with its backward part. The layer times its phases by a
 * clock, and corrects predictions by one factor for each kind of link and of local work, so one
 * schedule's times reprice all others. Links are corrected if the sum of a profile's predictions is
 * wrong. A route times the caller's experts from one call of a pass to the next. For training only
 * steps with a backward part count.
 *
 * A schedule that has run is known by its own time. Another one may be tried if it should take at
 * most 1.5 times as long, and if links are corrected or no profile has measured it. A trial is 3
 * steps. Trials get at most 2 % of the time.
 *
 * Every 16 steps ranks add up their times, by a moecclAllReduce that no rank waits for: it is
 * queued at one step and used 16 steps later. All ranks change at the beginning of the same step. A
 * Backward goes by the schedule of its Forward, a pass of a route by that of its Begin. Memory is
 * that of the schedules in use, three at most. Only schedules that automatic choice may take are
 * taken (moecclChoice_t), so ranks of an MP group keep the same bits. MOECCL_DEBUG=INFO says on
 * rank 0 why the schedule changed. */

/* Explains the choice in lines of text: the schedule, the corrections, the measured or predicted
 * time of each schedule, and the phases of the one in use beside their predictions. `text` has room
 * for *bytes, which becomes the size of the whole text with its final zero; a longer text is cut.
 * Local. Errors: InvalidArgument. */
MOECCL_API moecclResult_t moecclMoeLayerExplainChoice(moecclMoeLayer_t layer, char* text,
                                                      size_t* bytes);
/* Saves the schedule and all that was learned, as text to be kept with a checkpoint. The texts of
 * all ranks serve. `text` and *bytes as above. A layer that does not learn gives its schedule.
 * Local. Errors: InvalidArgument. */
MOECCL_API moecclResult_t moecclMoeLayerSaveChoice(moecclMoeLayer_t layer, char* text,
                                                   size_t* bytes);
/* Restores the saved text of a layer of the same config on a grid of the same shape, from the next
 * Forward on. A Backward of an earlier Forward is not possible any more. With config.learn the
 * layer goes on learning. Without it, it stays under the saved schedule, so that a run can be
 * repeated. Collective over the grid. If it fails on one rank it fails on all, and nothing is
 * changed.
 * Errors: InvalidArgument (NULL; the text was not made by SaveChoice, or of another layer; the
 * message names what differs). InvalidUsage (ranks came with different texts; config.schedule or
 * MOECCL_SCHEDULE asks for another schedule). SystemError (no memory for the schedule). Those of
 * moecclAllGather. RemoteError (one of these on another rank, which the message names). */
MOECCL_API moecclResult_t moecclMoeLayerRestoreChoice(moecclMoeLayer_t layer, const char* text);

#ifdef __cplusplus
}
#endif

#endif /* MOECCL_MOE_H_ */
