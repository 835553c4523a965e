/* Which schedule of a Mixture-of-Experts layer is the fastest (Parm V), and what profiles know of
 * layers. Part of libmoeccl-moe. Conventions as in moeccl.h; the text of an error is found with
 * moecclGetLastError(NULL). Nothing here communicates. */
#ifndef MOECCL_SELECT_H_
#define MOECCL_SELECT_H_

#include <moeccl/model.h>
#include <moeccl/moe.h>

#ifdef __cplusplus
extern "C" {
#endif

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

/* The schedules that a layer can run under, the fastest predicted first; behind them those that are
 * taken only if asked for. Made by moecclSelectSchedule. */
typedef struct moecclScheduleChoices* moecclScheduleChoices_t;

/* One of them. Begin with MOECCL_SCHEDULE_CHOICE_INITIALIZER. */
typedef struct {
  size_t size; /* set by the initialiser, like magic and version; leave alone */
  unsigned magic;
  unsigned version;
  moecclSchedule_t schedule;
  double seconds;       /* predicted, of the pass or passes */
  double communication; /* of these: in exchanges, beyond local work */
  /* What a rank sends to other nodes: the mean of the ranks of the largest node. */
  double bytesBetween;
  /* Into which the schedule cuts tokens, as the config says or the fastest of 1, 2, 4 and 8; 1 of
   * one that does not. */
  int64_t chunks;
  int measured;   /* 1: all by fits; 0: some priced from links, or local work of float64 taken as
                     twice that of float32 */
  int nExchanges; /* of the pass or passes */
  /* 1: automatic choice may take it; 0: it runs if asked for. So is the baseline in training where
   * nMp is above 1: it computes a token on all ranks of an MP group. What these learn may differ in
   * its last bits. */
  int automatic;
  int tokenRouting; /* 1: rows go by token routing; 0: they do not (config.tokenRouting) */
} moecclScheduleChoice_t;

#define MOECCL_SCHEDULE_CHOICE_MAGIC 0x6d6f7363u
#define MOECCL_SCHEDULE_CHOICE_INITIALIZER                                        \
  {                                                                               \
    sizeof(moecclScheduleChoice_t), MOECCL_SCHEDULE_CHOICE_MAGIC, MOECCL_VERSION, \
        moecclScheduleAuto, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0                          \
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
  const char* collective; /* "allgather", as in MOECCL_ALGO; of token routing "tokendispatch" or
                             "tokencombine", which are calls of route.h */
  const char* algorithm;  /* "bruck:radix=4", the fastest; of groups that differ, the slowest one's;
                             of token routing as in moecclRouteConfig_t */
  size_t bytes;           /* of one rank's sendbuff, in one call; of token routing of its tokens */
  double seconds;         /* predicted, of one call by itself */
  int calls;              /* one after the other: one for each chunk */
  int measured;           /* as in moecclAlgorithmChoice_t */
  uint64_t digest;        /* the same, of the plans of all groups of the kind */
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
 * layer does at once (chunks; the residual branch and dispatch) is predicted by what waits for
 * what. On one kind of link exchanges follow each other. Beside local work they go on where they do
 * so: on GPUs, and if the communicator has a progress thread. Errors: InvalidArgument, and those of
 * moecclMoeLayerCreate about the config. */
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

/* Why: the phases of every schedule, each with its predicted time, and below each exchange the
 * times of its algorithms, in lines of text. `text` has room for *bytes, which becomes what the
 * whole text takes with its final zero; what does not fit is cut. Local. Errors as
 * moecclSelectSchedule. */
MOECCL_API moecclResult_t moecclExplainSchedule(const moecclScheduleQuery_t* query, char* text,
                                                size_t* bytes);

#ifdef __cplusplus
}
#endif

#endif /* MOECCL_SELECT_H_ */
