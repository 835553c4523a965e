// Runs the tests that are linked in, with the seed of the command line.
#include "tests/gpu/check.h"

// kernels_gpu [--quick] [--seed NUMBER] [TEXT]: runs all tests, or those with TEXT in their name.
int main(int argc, char** argv) { return moeccl::gpu::run(argc, argv); }
