/* Costs of collectives and Mixture-of-Experts layers, and the fastest way of running them: the
 * profile of a cluster, the algorithm of a collective, the schedule of a layer (Parm V).
 * Conventions as in moeccl.h; moecclGetLastError(NULL) has the text of an error. Only
 * moecclProfileCreate and moecclCommSetProfile communicate.
 *
 * moeccl-fit makes profiles, or any program by the functions here. A profile holds samples, the
 * fits through them and the fingerprint of the cluster. In its fits a collective takes alpha +
 * beta x bytes, per collective, algorithm and group. If samples leave the line by more than their
 * noise, predictions follow the samples. The local work of a layer is a sum of terms for the gate,
 * the experts' products and moved bytes. Everything else is priced from the plans and the costs of
 * links. These are the links that fit the profile's samples best, those that a job measures at its
 * start (MOECCL_PROBE), or typical ones.
 */
#ifndef MOECCL_MODEL_H_
#define MOECCL_MODEL_H_

#include <moeccl/moe.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------ profiles */

typedef struct moecclProfile* moecclProfile_t;

/* Makes an empty profile, with the fingerprint of the cluster that `comm` spans: ranks per node,
 * processors and GPUs (of rank 0's node, if they differ), network, transport, library. It also has
 * the date and rank 0's command, for people. Collective. Errors: InvalidArgument, those of
 * moecclAllGather. */
MOECCL_API moecclResult_t moecclProfileCreate(moecclComm_t comm, moecclProfile_t* profile);
/* Reads a profile. Local. Errors: InvalidArgument (not a profile, or not one that this library
 * reads: the text says what is wrong, and where), SystemError (the file cannot be read). */
MOECCL_API moecclResult_t moecclProfileLoad(const char* path, moecclProfile_t* profile);
/* Writes a profile; an old file is replaced once the new one is complete. Local. Errors:
 * InvalidArgument, SystemError (the file cannot be written). */
MOECCL_API moecclResult_t moecclProfileSave(moecclProfile_t profile, const char* path);
/* Frees a profile; NULL is allowed. Communicators that use it keep what they need. */
MOECCL_API moecclResult_t moecclProfileDestroy(moecclProfile_t profile);

/* Makes `comm`, and communicators that are split from it later, choose by `profile`; NULL: by the
 * costs of typical links, as without a profile if MOECCL_PROBE is 0. Collective; all ranks pass the
 * same profile. MOECCL_PROFILE, the path of a profile, does this for every communicator made by
 * moecclCommInit....
 * Errors: InvalidArgument, InvalidUsage (the profile is of another cluster, the text says what
 * differs; or ranks came with different profiles), those of moecclAllGather. */
MOECCL_API moecclResult_t moecclCommSetProfile(moecclComm_t comm, moecclProfile_t profile);

/* One measured point of a collective: the median time of calls while all groups like `comm` of the
 * cluster make the same call. With `alone` all other ranks are idle, as links do best. */
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
 * branch. It has the local work of a rank, while all ranks of the machine compute such a layer. */
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
/* Fits all samples anew, by least squares of relative errors: lines, local work, and the links that
 * price clusters without measurements. Local. */
MOECCL_API moecclResult_t moecclProfileFit(moecclProfile_t profile);

/* ------------------------------------------------------------------------------------- clusters */

/* Typical links, for clusters without measurements. */
typedef enum {
  moecclLinksHost = 0,   /* shared memory in a node, 10 Gb/s between nodes */
  moecclLinksNvlink = 1, /* GPUs: NVLink in a node, a port of 400 Gb/s for each between nodes */
  moecclLinksPcie = 2,   /* GPUs: PCIe in a node, one port of 100 Gb/s for all between nodes */
  moecclNumLinks = 3
} moecclLinks_t;

/* The ranks and links that a question is about, of a communicator or grid that exists, or of a
 * cluster that does not. Begin with MOECCL_CLUSTER_INITIALIZER and set either `grid`, or `comm`, or
 * the rest. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  moecclGrid_t grid;       /* with its communicator's profile and fixed algorithms */
  moecclComm_t comm;       /* the same, of a collective that needs no grid */
  int nNodes;              /* ranks are numbered node by node */
  const int* ranksPerNode; /* [nNodes] */
  moecclGridShape_t shape; /* if a grid is needed */
  /* That of this cluster, or of another one with such nodes and links; NULL: typical links. Its
   * processors per node count: if a node's ranks outnumber them, their work takes longer. */
  moecclProfile_t profile;
  /* The links, if the profile has none. With those of GPUs NCCL's own functions count too. */
  moecclLinks_t links;
  /* Gb/s that a node's ranks together can send to other nodes; 0: the typical rate. */
  int networkGbits;
  /* Two levels of switches: so many nodes hang on each leaf switch, in their order, and a core
   * joins the leaves. 0: one switch has all nodes. Profiles are of one switch, so collectives of
   * ranks on several leaves are priced. */
  int nodesPerSwitch;
  /* The rate of all nodes of a full leaf together / the rate of its uplink to the core. At least 1;
   * 0: as 1. */
  double oversubscription;
} moecclCluster_t;

#define MOECCL_CLUSTER_MAGIC 0x6d6f636cu
#define MOECCL_CLUSTER_INITIALIZER                                                      \
  {                                                                                     \
    sizeof(moecclCluster_t), MOECCL_CLUSTER_MAGIC, MOECCL_VERSION, NULL, NULL, 0, NULL, \
        {1, 1, 1, moecclOrderEspEp}, NULL, moecclLinksHost, 0, 0, 0.0                   \
  }

/* ------------------------------------------------------------------------------------- choices */

/* A question: which algorithm for a collective, or which schedule for a layer? Begin with
 * MOECCL_QUERY_INITIALIZER, and set `cluster` and either `collective` or `layer`. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  const moecclCluster_t* cluster;
  const char* collective; /* as in MOECCL_ALGO: "alltoall" */
  /* If its schedule or MOECCL_SCHEDULE is not auto, that one is the only choice. */
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

/* The offered algorithms or schedules, the fastest by prediction first, and last the schedules that
 * run only if asked for. Made by moecclSelect. */
typedef struct moecclChoices* moecclChoices_t;

/* One choice, or an exchange of a schedule: a collective that every rank of every group of a kind
 * calls. Begin with MOECCL_CHOICE_INITIALIZER. Texts are valid until the choices are destroyed. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  /* An algorithm as in MOECCL_ALGO, "bruck:radix=4"; a schedule as in MOECCL_SCHEDULE, "S1". An
   * exchange has its fastest algorithm, by the slowest of groups that differ; token routing one as
   * in moecclRouteConfig_t. */
  const char* name;
  /* The basis of the prediction. "curves": fits of samples. "links": at least in part costs of
   * links, or local work of float64 taken as twice that of float32. */
  const char* source;
  double seconds; /* predicted; of an exchange those of one call by itself */
  /* Bytes that a rank sends to other nodes: the mean over the ranks of the largest node. */
  double bytesBetween;
  /* A digest of the plans: algorithms with equal ones send the same messages in the same order. It
   * depends on the library's version. 0 for a schedule. */
  uint64_t digest;
  /* For an algorithm: the straight line through all measured or priced sizes, alpha + beta *
   * bytes. */
  double alpha;
  double beta;
  /* For a schedule, up to nExchanges. */
  double communication; /* of its seconds: in exchanges, beyond local work */
  /* Chunks into which it cuts tokens, by the config or the fastest of 1, 2, 4 and 8; 1 if it cuts
   * none. */
  int64_t chunks;
  moecclSchedule_t schedule;
  int tokenRouting; /* 1: rows go by token routing; 0: they do not (config.tokenRouting) */
  /* 1: automatic choice may take it. 0: it runs only if asked for, as the baseline does in training
   * with nMp above 1. That computes a token on all ranks of an MP group, whose gradients may then
   * differ in their last bits. */
  int automatic;
  int nExchanges; /* of the pass or passes */
  /* For an exchange. */
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
 * V-B); automatic choice takes the first. Priced algorithms with equal plans, as ring and linear
 * among two ranks, are one choice. If the cluster's communicator has a fixed algorithm, that is the
 * only one; a communicator on GPUs has the algorithms that it offers.
 * Times of a dropless layer are those of even loads, k B L / E tokens of an MP group for each
 * expert. Predictions respect overlap (chunks; the residual branch and dispatch): exchanges on one
 * kind of link follow each other, and overlap local work on GPUs and with a progress thread.
 * Local; repeated questions about one grid are answered from memory. *nChoices is their number; it
 * may be NULL. Errors: InvalidArgument, and those of moecclMoeLayerCreate about the config. */
MOECCL_API moecclResult_t moecclSelect(const moecclQuery_t* query, moecclChoices_t* choices,
                                       int* nChoices);
/* Gets choice `index`, from 0 on; or, if `exchange` is not -1, that exchange of it. Exchanges are
 * in their order, those of the forward pass first. Errors: InvalidArgument (no such choice or
 * exchange, a struct without initialiser). */
MOECCL_API moecclResult_t moecclChoicesGet(moecclChoices_t choices, int index, int exchange,
                                           moecclChoice_t* choice);
/* Frees choices; NULL is allowed. */
MOECCL_API moecclResult_t moecclChoicesDestroy(moecclChoices_t choices);

/* Explains the answer, as lines for people (`format` "text", or NULL) or as JSON ("json"). The
 * first line is the answer with its predicted time, its source and the runner-up. Then comes every
 * choice, schedules phase by phase, and below each exchange the times of its algorithms. JSON is an
 * object of the same choices and exchanges, with the fields of moecclChoice_t. `text` has room for
 * *bytes, which becomes the size of the whole text with its final zero; a longer text is cut.
 * Local. Errors as moecclSelect, and InvalidArgument (format, text, bytes). */
MOECCL_API moecclResult_t moecclExplain(const moecclQuery_t* query, const char* format, char* text,
                                        size_t* bytes);

#ifdef __cplusplus
}
#endif

#endif /* MOECCL_MODEL_H_ */
