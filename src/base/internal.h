// What libmoeccl-moe asks of libmoeccl beside the public API, and nothing more. These functions are
// exported under a version of the release's own, so that no other release's library can call them.
#pragma once

#include <cstddef>

#include "moeccl/model.h"

extern "C" {

// Why: moecclGetLastError(NULL) tells of both libraries. Keeps the text of an error of this thread,
// "function: text", and returns `result`.
MOECCL_API moecclResult_t moecclInternalReport(const char* function, moecclResult_t result,
                                               const char* text) noexcept;

// Why: ranks compare a layer's config before it has memory that a GPU could send. What each rank
// brings, `bytes` bytes of host memory, by rank. Collective over the grid.
MOECCL_API moecclResult_t moecclInternalExchange(moecclGrid_t grid, const void* mine, void* all,
                                                 size_t bytes);
// The same of a step that may fail on one rank alone: all fail if one does. `mine` is success or an
// error with its text.
MOECCL_API moecclResult_t moecclInternalAgree(moecclGrid_t grid, moecclResult_t mine,
                                              const char* text);

// Why: layers compute where their communicator's buffers are, and are chosen by what it is.
typedef struct {
  int device;           // of a GPU; -1: host memory
  int ranksOnNode;      // of the job on its largest node, of which the grid may be a part
  moecclLinks_t links;  // what is taken for granted of them
  int background;       // 1: exchanges go on while the caller computes
  unsigned long model;  // a number of what calls are chosen by: another one with each profile
  void* attached;       // by moecclInternalAttach
} moecclInternalGrid_t;
MOECCL_API moecclResult_t moecclInternalDescribe(moecclGrid_t grid, moecclInternalGrid_t* it);
// The grid destroys `object` when it is destroyed, or given another.
MOECCL_API moecclResult_t moecclInternalAttach(moecclGrid_t grid, void* object,
                                               void (*destroy)(void*));

// Why: schedules are priced for every group of a grid, not the caller's alone, by all that a
// profile has. Texts are valid during the call of `take`.
typedef struct {
  const char* const* algorithms;  // those that are fixed, or "auto", by number of the collective
  int nAlgorithms;
  const char* profile;  // as its file; NULL: none
} moecclInternalModel_t;
// Of a grid, or of a profile alone where `grid` is NULL.
MOECCL_API moecclResult_t moecclInternalModel(moecclGrid_t grid, moecclProfile_t profile,
                                              void (*take)(void* context,
                                                           const moecclInternalModel_t* model),
                                              void* context);

// Why: profiles hold samples of what a layer computes, which libmoeccl does not know.
typedef struct {
  double seconds, spread;
  int backward;
  const double* numbers;  // the fields of LocalWork
} moecclInternalSample_t;
MOECCL_API moecclResult_t moecclInternalAddSample(moecclProfile_t profile,
                                                  const moecclInternalSample_t* sample);

}  // extern "C"
