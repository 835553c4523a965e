/* What collectives cost, and which way of doing them is the fastest: the profile of a cluster, the
 * algorithm of a collective. select.h asks the same of Mixture-of-Experts layers.
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

#include <moeccl/moeccl.h>

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

/* Adds a sample; fits are made by moecclProfileFit. moecclProfileAddLayer of select.h adds
 * local work. Local. Errors: InvalidArgument. */
MOECCL_API moecclResult_t moecclProfileAddCollective(moecclProfile_t profile,
                                                     const moecclCollectiveSample_t* sample);
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

#ifdef __cplusplus
}
#endif

#endif /* MOECCL_MODEL_H_ */
