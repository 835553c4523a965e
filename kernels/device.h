// What nvcc must be told of functions that run on hosts and on GPUs.
#pragma once

#ifdef __CUDACC__
#define MOECCL_DEVICE __host__ __device__
#else
#define MOECCL_DEVICE
#endif
