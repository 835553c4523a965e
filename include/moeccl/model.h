/* What collectives and Mixture-of-Experts layers cost, and which way of doing them is the fastest:
 * the profile of a cluster, the algorithm of a collective, the schedule of a layer (Parm V).
 * Conventions as in moeccl.h; the text of an error is found with moecclGetLastError(NULL). Nothing
 * here communicates but moecclProfileCreate and moecclCommSetProfile.
 *
 * A profile is made by moeccl-fit, or by whoever measures. It holds samples, the fits through them
 * and the fingerprint of the cluster. In its fits a collective takes alpha + beta x bytes, per
 * collective, algorithm and group. Where samples leave the line by more than their noise,
 * predictions follow the samples. The local work of a layer is a sum of terms for the gate, the
 * experts' products and what is moved. Everything else is priced from the plans and the costs of
 * links: those that fit the profile's samples best, those that a job measures at its start
 * (MOECCL_PROBE), or typical ones.
 */
#ifndef MOECCL_MODEL_H_
#define MOECCL_MODEL_H_

#include <moeccl/moe.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------ profiles */

typedef struct moecclProfile* moecclProfile_t;

/* An empty profile, with the fingerprint of the cluster that `comm` spans: ranks per node,
 * processors and GPUs (of rank 0's node, where they differ), network, transport, library. For
 * people it says when it was made, and rank 0's command. Collective. Errors: InvalidArgument, those
 * of moecclAllGather. */
MOECCL_API moecclResult_t moecclProfileCreate(moecclComm_t comm, moecclProfile_t* profile);
/* Reads a profile. Local. Errors: InvalidArgument (not a profile, or not one that this library
 * reads: the text says what is wrong, and where), SystemError (the file cannot be read). */
MOECCL_API moecclResult_t moecclProfileLoad(const char* path, moecclProfile_t* profile);
/* Writes a profile; an old file is replaced once the new one is complete. Local. Errors:
 * InvalidArgument, SystemError (the file cannot be written). */
MOECCL_API moecclResult_t moecclProfileSave(moecclProfile_t profile, const char* path);
/* Frees a profile; NULL is allowed. Communicators that use it keep what they need. */
MOECCL_API moecclResult_t moecclProfileDestroy(moecclProfile_t profile);

/* From now on `comm`, and what is split from it afterwards, chooses by `profile`; NULL: by the
 * costs of typical links, as without a profile where MOECCL_PROBE is 0. Collective; all ranks pass
 * the same profile. MOECCL_PROFILE, the path of a profile, does this for every communicator made by
 * moecclCommInit....
 * Errors: InvalidArgument, InvalidUsage (the profile is of another cluster, the text says what
 * differs; or ranks came with different profiles), those of moecclAllGather. */
MOECCL_API moecclResult_t moecclCommSetProfile(moecclComm_t comm, moecclProfile_t profile);

/* One measured point of a collective: the median time of calls while all groups like `comm` of the
 * cluster make the same call. With `alone` all other ranks are idle: what a link can do for one. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  int alone;              /* 1: alone. Stored and fitted, but nothing is chosen by it */
  const char* collective; /* "alltoall", ..., as in MOECCL_ALGO */
  const char* algorithm;  /* "bruck:radix=4", ..., as in MOECCL_ALGO */
  moecclComm_t comm;      /* the group; of a collective of a grid NULL, and: */
  moecclGrid_t grid;
  size_t bytes;   /* of one rank's sendbuff */
  double seconds; /* median, on the slowest rank; above 0 */
  double spread;  /* (third quartile - first) / median; 0: unknown */
} moecclCollectiveSample_t;

#define MOECCL_COLLECTIVE_SAMPLE_MAGIC 0x6d6f6373u
#define MOECCL_COLLECTIVE_SAMPLE_INITIALIZER                                                   \
  {                                                                                            \
    sizeof(moecclCollectiveSample_t), MOECCL_COLLECTIVE_SAMPLE_MAGIC, MOECCL_VERSION, 0, NULL, \
        NULL, NULL, NULL, 0, 0.0, 0.0                                                          \
  }

/* Adds a sample; fits are made by moecclProfileFit. Local. Errors: InvalidArgument. */
MOECCL_API moecclResult_t moecclProfileAddCollective(moecclProfile_t profile,
                                                     const moecclCollectiveSample_t* sample);
/* A pass of a layer. Values can be added. */
typedef enum { moecclPassForward = 1, moecclPassBackward = 2, moecclPassBoth = 3 } moecclPass_t;

/* One measured layer of float32 on a grid of one rank, with a capacity and without a residual
 * branch: what a rank computes by itself, while all ranks of the machine compute such a layer. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  moecclMoeLayer_t layer;
  moecclPass_t pass; /* forward or backward */
  double seconds;    /* median; above 0 */
  double spread;     /* as above */
} moecclLayerSample_t;

#define MOECCL_LAYER_SAMPLE_MAGIC 0x6d6f6c73u
#define MOECCL_LAYER_SAMPLE_INITIALIZER                                           \
  {                                                                               \
    sizeof(moecclLayerSample_t), MOECCL_LAYER_SAMPLE_MAGIC, MOECCL_VERSION, NULL, \
        moecclPassForward, 0.0, 0.0                                               \
  }

/* Adds a sample; fits are made by moecclProfileFit. Local. Errors: InvalidArgument. */
MOECCL_API moecclResult_t moecclProfileAddLayer(moecclProfile_t profile,
                                                const moecclLayerSample_t* sample);
/* Fits anew all that has samples, by least squares of relative errors: lines, local work, and the
 * links by which clusters are priced that nobody has measured. Local. */
MOECCL_API moecclResult_t moecclProfileFit(moecclProfile_t profile);

/* ------------------------------------------------------------------------------------- clusters */

/* Links that are typical where nobody has measured any. */
typedef enum {
  moecclLinksHost = 0,   /* shared memory in a node, 10 Gb/s between nodes */
  moecclLinksNvlink = 1, /* GPUs: NVLink in a node, a port of 400 Gb/s for each between nodes */
  moecclLinksPcie = 2,   /* GPUs: PCIe in a node, one port of 100 Gb/s for all between nodes */
  moecclNumLinks = 3
} moecclLinks_t;

/* What a question is about: the ranks and links of a communicator or grid that exists, or those of
 * a cluster that does not. Begin with MOECCL_CLUSTER_INITIALIZER and set either `grid`, or `comm`,
 * or the rest. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  moecclGrid_t grid;       /* with its communicator's profile and fixed algorithms */
  moecclComm_t comm;       /* the same, of a collective that needs no grid */
  int nNodes;              /* ranks are numbered node by node */
  const int* ranksPerNode; /* [nNodes] */
  moecclGridShape_t shape; /* where a grid is needed */
  /* Of this cluster, or of another one with such nodes and links; NULL: typical links. Its
   * processors per node count: where a node's ranks outnumber them, their work takes longer. */
  moecclProfile_t profile;
  /* Without a profile that has links. With those of GPUs NCCL's own functions count too. */
  moecclLinks_t links;
  /* What a node's ranks together can send to other nodes, in Gb/s; 0: what is typical. */
  int networkGbits;
  /* Two levels of switches: so many nodes hang on each leaf switch, in their order, and a core
   * joins the leaves. 0: one switch has all nodes. What a profile has measured is of one switch:
   * collectives of ranks on several leaves are priced. */
  int nodesPerSwitch;
  /* Of each leaf: what its nodes can send together, when it is full, against what its uplink to
   * the core carries. At least 1; 0: as 1. */
  double oversubscription;
} moecclCluster_t;

#define MOECCL_CLUSTER_MAGIC 0x6d6f636cu
#define MOECCL_CLUSTER_INITIALIZER                                                      \
  {                                                                                     \
    sizeof(moecclCluster_t), MOECCL_CLUSTER_MAGIC, MOECCL_VERSION, NULL, NULL, 0, NULL, \
        {1, 1, 1, moecclOrderEspEp}, NULL, moecclLinksHost, 0, 0, 0.0                   \
  }

/* ------------------------------------------------------------------------------------- choices */

/* What is asked: which algorithm for a collective, or which schedule for a layer. Begin with
 * MOECCL_QUERY_INITIALIZER, and set `cluster` and either `collective` or `layer`. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  const moecclCluster_t* cluster;
  const char* collective; /* as in MOECCL_ALGO: "alltoall" */
  /* Its schedule and MOECCL_SCHEDULE, unless auto, leave no choice. */
  const moecclMoeConfig_t* layer;
  size_t bytes;        /* of one rank's sendbuff in the collective */
  int nExpertsPerRank; /* of dispatch, combine, their mirrors and SAA */
  moecclPass_t pass;   /* of the layer */
} moecclQuery_t;

#define MOECCL_QUERY_MAGIC 0x6d6f7175u
#define MOECCL_QUERY_INITIALIZER                                                       \
  {                                                                                    \
    sizeof(moecclQuery_t), MOECCL_QUERY_MAGIC, MOECCL_VERSION, NULL, NULL, NULL, 0, 1, \
        moecclPassForward                                                              \
  }

/* The algorithms or schedules that can be had, the fastest predicted first; behind them schedules
 * that are taken only if asked for. Made by moecclSelect. */
typedef struct moecclChoices* moecclChoices_t;

/* One of them, or an exchange of a schedule: a collective that every rank of every group of a kind
 * calls. Begin with MOECCL_CHOICE_INITIALIZER. Texts are valid until the choices are destroyed. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  /* "bruck:radix=4" as in MOECCL_ALGO, "S1" as in MOECCL_SCHEDULE. Of an exchange its fastest
   * algorithm; of groups that differ, the slowest one's; of token routing as in
   * moecclRouteConfig_t. */
  const char* name;
  /* What the prediction is from. "curves": fits of what was measured. "links": what links cost, at
   * least in part, or local work of float64 taken as twice that of float32. */
  const char* source;
  double seconds; /* predicted; of an exchange those of one call by itself */
  /* What a rank sends to other nodes: the mean of the ranks of the largest node. */
  double bytesBetween;
  /* Of the plans: algorithms with equal digests send the same messages in the same order. It
   * depends on the library's version. Of a schedule 0. */
  uint64_t digest;
  /* Of an algorithm. The straight line through all sizes that were measured, or are priced: alpha +
   * beta * bytes. */
  double alpha;
  double beta;
  /* Of a schedule. */
  double communication; /* of its seconds: in exchanges, beyond local work */
  /* Into which it cuts tokens, as the config says or the fastest of 1, 2, 4 and 8; 1 of one that
   * does not. */
  int64_t chunks;
  moecclSchedule_t schedule;
  int tokenRouting; /* 1: rows go by token routing; 0: they do not (config.tokenRouting) */
  /* 1: automatic choice may take it; 0: it runs if asked for. So is the baseline in training where
   * nMp is above 1: it computes a token on all ranks of an MP group. What these learn may differ in
   * its last bits. */
  int automatic;
  int nExchanges; /* of the pass or passes */
  /* Of an exchange. */
  int calls;              /* one after the other: one for each chunk */
  const char* phase;      /* for people, as in the layer's errors: "MP-AllGather" */
  const char* collective; /* "allgather", as in MOECCL_ALGO; of token routing "tokendispatch" or
                             "tokencombine", which are calls of route.h */
  size_t bytes;           /* of one rank's sendbuff, in one call; of token routing of its tokens */
  moecclGroup_t group;    /* whose ranks call it */
  moecclPass_t pass;      /* forward or backward */
} moecclChoice_t;

#define MOECCL_CHOICE_MAGIC 0x6d6f6368u
#define MOECCL_CHOICE_INITIALIZER                                                              \
  {                                                                                            \
    sizeof(moecclChoice_t), MOECCL_CHOICE_MAGIC, MOECCL_VERSION, NULL, NULL, 0.0, 0.0, 0, 0.0, \
        0.0, 0.0, 0, moecclScheduleAuto, 0, 0, 0, 0, NULL, NULL, 0, moecclGroupWorld,          \
        moecclPassForward                                                                      \
  }

/* Finds the algorithms for a collective, or every schedule that a layer and its grid offer (Parm
 * V-B); automatic choice takes the first. Of priced algorithms that do the same, as ring and linear
 * do among two ranks, there is one. Where the cluster's communicator has a fixed algorithm, that
 * one alone is there; of a communicator on GPUs those that it offers.
 * Of a dropless layer times are those of even loads, k B L / E tokens of an MP group for each
 * expert. What a layer does at once (chunks; the residual branch and dispatch) is predicted by what
 * waits for what. On one kind of link exchanges follow each other. Beside local work they go on
 * where they do so: on GPUs, and if the communicator has a progress thread.
 * Local; repeated questions about one grid are answered from memory. *nChoices: how many there are;
 * it may be NULL. Errors: InvalidArgument, and those of moecclMoeLayerCreate about the config. */
MOECCL_API moecclResult_t moecclSelect(const moecclQuery_t* query, moecclChoices_t* choices,
                                       int* nChoices);
/* Choice `index`, from 0 on; or, where `exchange` is not -1, this exchange of it, in their order,
 * those of the forward pass first. Errors: InvalidArgument (no such choice or exchange, a struct
 * without initialiser). */
MOECCL_API moecclResult_t moecclChoicesGet(moecclChoices_t choices, int index, int exchange,
                                           moecclChoice_t* choice);
/* NULL is allowed. */
MOECCL_API moecclResult_t moecclChoicesDestroy(moecclChoices_t choices);

/* The answer, and why. `format` "text", or NULL: lines for people. The first is the answer with its
 * predicted time, its source and the runner-up; then every choice, of schedules phase by phase, and
 * below each exchange the times of its algorithms. "json": the same choices and exchanges as an
 * object, with the fields of moecclChoice_t. `text` has room for *bytes, which becomes what the
 * whole takes with its final zero; what does not fit is cut. Local. Errors as moecclSelect, and
 * InvalidArgument (format, text, bytes). */
MOECCL_API moecclResult_t moecclExplain(const moecclQuery_t* query, const char* format, char* text,
                                        size_t* bytes);

#ifdef __cplusplus
}
#endif

#endif /* MOECCL_MODEL_H_ */
