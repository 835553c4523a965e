/* What collectives and Mixture-of-Experts layers cost, and which way of doing them is the fastest:
 * the profile of a cluster, the algorithm of a collective, the schedule of a layer (Parm V).
 * Conventions as in moeccl.h; the text of an error is found with moecclGetLastError(NULL). Nothing
 * here communicates but moecclProfileCreate and moecclCommSetProfile.
 *
 * A profile is made by moeccl-fit, or by whoever measures: it holds samples, the fits through them
 * and the fingerprint of the cluster. In its fits a collective takes alpha + beta x bytes, per
 * collective, algorithm and group, with a second line where one does not fit; near samples that are
 * off by more than their spreads explain, it takes what these say. The local work of a layer is a
 * sum of terms for the gate, the experts' products and what is moved; and of whole layers, where
 * they were measured, the profile knows by what factors their exchanges and local work take longer
 * than by themselves. What a profile has no samples for, and everything where there is no profile,
 * is priced from the plans and the costs of links: of those on which the profile's samples come out
 * best, or typical ones.
 */
#ifndef MOECCL_MODEL_H_
#define MOECCL_MODEL_H_

#include <moeccl/moe.h>
#include <moeccl/moeccl.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------ profiles */

typedef struct moecclProfile* moecclProfile_t;

/* An empty profile, with the fingerprint of the cluster that `comm` spans: ranks per node,
 * processors (of rank 0's node, where they differ), transport, library; for people it says when it
 * was made, and rank 0's command. Collective. Errors: InvalidArgument, those of moecclAllGather. */
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
 * costs of typical links, as without any. Collective; all ranks pass the same profile.
 * MOECCL_PROFILE, the path of a profile, does this for every communicator made by
 * moecclCommInit....
 * Errors: InvalidArgument, InvalidUsage (the profile is of another cluster, the text says what
 * differs; or ranks came with different profiles), those of moecclAllGather. */
MOECCL_API moecclResult_t moecclCommSetProfile(moecclComm_t comm, moecclProfile_t profile);

/* One measured point of a collective: the median time of calls while all groups like `comm` of the
 * cluster make the same call, or, `alone`, while all other ranks are idle: what a link can do for
 * one. */
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

/* A pass of a layer. Values can be added. */
typedef enum { moecclPassForward = 1, moecclPassBackward = 2, moecclPassBoth = 3 } moecclPass_t;

/* One measured layer of float32, with a capacity and without a residual branch. On a grid of one
 * rank, while all ranks of the machine compute such a layer: the local work, without exchanges. On
 * a larger grid: how much longer the schedule's exchanges and local work take together than by
 * themselves, per grid, schedule, pass and chunks of S1, of which there may be 1, 2, 4 or 8; the
 * layer's communicator must choose its algorithms by this profile's samples of them. It counts once
 * these are there. */
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
MOECCL_API moecclResult_t moecclProfileAddCollective(moecclProfile_t profile,
                                                     const moecclCollectiveSample_t* sample);
MOECCL_API moecclResult_t moecclProfileAddLayer(moecclProfile_t profile,
                                                const moecclLayerSample_t* sample);
/* Fits anew all that has samples, by least squares of relative errors: lines, local work, and the
 * links by which clusters are priced that nobody has measured. Local. */
MOECCL_API moecclResult_t moecclProfileFit(moecclProfile_t profile);

/* ------------------------------------------------------------------------------------- clusters */

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
} moecclCluster_t;

#define MOECCL_CLUSTER_MAGIC 0x6d6f636cu
#define MOECCL_CLUSTER_INITIALIZER                                                      \
  {                                                                                     \
    sizeof(moecclCluster_t), MOECCL_CLUSTER_MAGIC, MOECCL_VERSION, NULL, NULL, 0, NULL, \
        {1, 1, 1, moecclOrderEspEp}, NULL                                               \
  }

/* ----------------------------------------------------------------------------------- algorithms */

/* The algorithms that a collective can run, the fastest predicted first. Made by
 * moecclSelectAlgorithm. */
typedef struct moecclAlgorithmChoices* moecclAlgorithmChoices_t;

/* One of them. Begin with MOECCL_ALGORITHM_CHOICE_INITIALIZER. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  int measured;          /* 1: by a fit of this collective, 0: priced from links */
  const char* algorithm; /* as in MOECCL_ALGO: "bruck:radix=4"; valid until Destroy */
  double seconds;        /* predicted */
  /* The straight line through all sizes that were measured, or are priced: alpha + beta * bytes. */
  double alpha;
  double beta;
  /* Of the plans: algorithms with equal digests send the same messages in the same order. It
   * depends on the library's version. */
  uint64_t digest;
} moecclAlgorithmChoice_t;

#define MOECCL_ALGORITHM_CHOICE_MAGIC 0x6d6f6163u
#define MOECCL_ALGORITHM_CHOICE_INITIALIZER                                                       \
  {                                                                                               \
    sizeof(moecclAlgorithmChoice_t), MOECCL_ALGORITHM_CHOICE_MAGIC, MOECCL_VERSION, 0, NULL, 0.0, \
        0.0, 0.0, 0                                                                               \
  }

/* Finds the algorithms for a collective. `bytes`: of one rank's sendbuff. nExpertsPerRank counts
 * for dispatch, combine, their mirrors and SAA. Of priced algorithms that do the same there, as
 * ring and linear do among two ranks, there is one. Where the cluster's communicator has a fixed
 * algorithm, that one alone is there; of a communicator on GPUs those that it offers. Local.
 * Errors: InvalidArgument. */
MOECCL_API moecclResult_t moecclSelectAlgorithm(const moecclCluster_t* cluster,
                                                const char* collective, size_t bytes,
                                                int nExpertsPerRank,
                                                moecclAlgorithmChoices_t* choices);
MOECCL_API moecclResult_t moecclAlgorithmChoicesCount(moecclAlgorithmChoices_t choices,
                                                      int* nChoices);
/* Errors: InvalidArgument (`index` outside [0, nChoices), a struct without initialiser). */
MOECCL_API moecclResult_t moecclAlgorithmChoicesGet(moecclAlgorithmChoices_t choices, int index,
                                                    moecclAlgorithmChoice_t* choice);
/* NULL is allowed. */
MOECCL_API moecclResult_t moecclAlgorithmChoicesDestroy(moecclAlgorithmChoices_t choices);

/* ------------------------------------------------------------------------------------ schedules */

typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  moecclPass_t pass;
  const moecclCluster_t* cluster;
  /* Its schedule and MOECCL_SCHEDULE, unless auto, leave no choice. */
  const moecclMoeConfig_t* layer;
} moecclScheduleQuery_t;

#define MOECCL_SCHEDULE_QUERY_MAGIC 0x6d6f7371u
#define MOECCL_SCHEDULE_QUERY_INITIALIZER                                                          \
  {                                                                                                \
    sizeof(moecclScheduleQuery_t), MOECCL_SCHEDULE_QUERY_MAGIC, MOECCL_VERSION, moecclPassForward, \
        NULL, NULL                                                                                 \
  }

/* The schedules that a layer can run under, the fastest predicted first. Made by
 * moecclSelectSchedule. */
typedef struct moecclScheduleChoices* moecclScheduleChoices_t;

/* One of them. Begin with MOECCL_SCHEDULE_CHOICE_INITIALIZER. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  moecclSchedule_t schedule;
  double seconds;       /* predicted, of the pass or passes */
  double communication; /* of these: in exchanges */
  /* What a rank sends to other nodes: the mean of the ranks of the largest node. */
  double bytesBetween;
  /* Into which S1 cuts tokens, as the config says or the fastest measured; 1 of others. */
  int64_t chunks;
  int measured;   /* 1: all by fits; 0: some priced from links, or local work of float64 taken as
                     twice that of float32 */
  int nExchanges; /* of the pass or passes */
} moecclScheduleChoice_t;

#define MOECCL_SCHEDULE_CHOICE_MAGIC 0x6d6f7363u
#define MOECCL_SCHEDULE_CHOICE_INITIALIZER                                        \
  {                                                                               \
    sizeof(moecclScheduleChoice_t), MOECCL_SCHEDULE_CHOICE_MAGIC, MOECCL_VERSION, \
        moecclScheduleAuto, 0.0, 0.0, 0.0, 0, 0, 0                                \
  }

/* One exchange of a schedule: a collective that every rank of every group of a kind calls. Begin
 * with MOECCL_SCHEDULE_EXCHANGE_INITIALIZER. Texts are valid until the choices are destroyed. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  moecclPass_t pass;      /* forward or backward */
  moecclGroup_t group;    /* whose ranks call it */
  const char* phase;      /* for people, as in the layer's errors: "MP-AllGather" */
  const char* collective; /* "allgather", as in MOECCL_ALGO */
  const char*
      algorithm;   /* "bruck:radix=4", the fastest; of groups that differ, the slowest one's */
  size_t bytes;    /* of one rank's sendbuff, in one call */
  double seconds;  /* predicted, of one call by itself */
  int calls;       /* one after the other: one for each chunk */
  int measured;    /* as in moecclAlgorithmChoice_t */
  uint64_t digest; /* the same, of the plans of all groups of the kind */
} moecclScheduleExchange_t;

#define MOECCL_SCHEDULE_EXCHANGE_MAGIC 0x6d6f7378u
#define MOECCL_SCHEDULE_EXCHANGE_INITIALIZER                                          \
  {                                                                                   \
    sizeof(moecclScheduleExchange_t), MOECCL_SCHEDULE_EXCHANGE_MAGIC, MOECCL_VERSION, \
        moecclPassForward, moecclGroupWorld, NULL, NULL, NULL, 0, 0.0, 0, 0, 0        \
  }

/* Finds every schedule that the layer and the grid offer (Parm V-B); the layer's automatic choice
 * is the first. Local; repeated questions about one grid are answered from memory. Of a dropless
 * layer times are those of even loads, k B L / E tokens of an MP group for each expert. What a
 * layer does at once (the residual branch and dispatch) is predicted as one after the other.
 * Errors: InvalidArgument, and those of moecclMoeLayerCreate about the config. */
MOECCL_API moecclResult_t moecclSelectSchedule(const moecclScheduleQuery_t* query,
                                               moecclScheduleChoices_t* choices);
MOECCL_API moecclResult_t moecclScheduleChoicesCount(moecclScheduleChoices_t choices,
                                                     int* nChoices);
/* Errors: InvalidArgument (`index` outside [0, nChoices), a struct without initialiser). */
MOECCL_API moecclResult_t moecclScheduleChoicesGet(moecclScheduleChoices_t choices, int index,
                                                   moecclScheduleChoice_t* choice);
/* The exchanges of choice `index` in their order, those of the forward pass first. Errors:
 * InvalidArgument (also: `exchange` outside [0, nExchanges)). */
MOECCL_API moecclResult_t moecclScheduleChoicesGetExchange(moecclScheduleChoices_t choices,
                                                           int index, int exchange,
                                                           moecclScheduleExchange_t* it);
/* NULL is allowed. */
MOECCL_API moecclResult_t moecclScheduleChoicesDestroy(moecclScheduleChoices_t choices);

/* Why: a table of every schedule's terms and of every algorithm's time for them, in lines of text.
 * `text` has room for *bytes, which becomes what the whole text takes with its final zero; what
 * does not fit is cut. Local. Errors as moecclSelectSchedule. */
MOECCL_API moecclResult_t moecclExplainSchedule(const moecclScheduleQuery_t* query, char* text,
                                                size_t* bytes);

#ifdef __cplusplus
}
#endif

#endif /* MOECCL_MODEL_H_ */
