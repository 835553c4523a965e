/* Adopts an NCCL communicator. Needs no header of NCCL's: an ncclComm_t is a pointer to the struct
 * below. */
#ifndef MOECCL_NCCL_H_
#define MOECCL_NCCL_H_

#include <moeccl/moeccl.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ncclComm;

/* Makes a GPU communicator of the ranks of `ncclComm`, in their order and on its device, which must
 * be the calling thread's current one. Collective over ncclComm. It has no work under way, is used
 * only inside this call, and is split in it (ncclCommSplit). The program and the library must use
 * the same libnccl.so.2. config NULL: defaults; config.memory is ignored. Errors:
 * InvalidArgument (comm or ncclComm NULL, a config without initialiser). InvalidUsage (another
 * device is current, ranks disagree on the config). RemoteError (another device is current on
 * another rank). Those of GPU communicators that cannot be made (moeccl.h, 9), and NCCL's. */
MOECCL_API moecclResult_t moecclCommInitNccl(moecclComm_t* comm, struct ncclComm* ncclComm,
                                             const moecclConfig_t* config);

#ifdef __cplusplus
}
#endif

#endif /* MOECCL_NCCL_H_ */
