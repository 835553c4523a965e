// Jobs that measure their links, and keep them in a folder of the test's own.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

#include "moeccl/model.h"
#include "tests/api/ranks.h"
#include "tests/temporary_folder.h"

namespace moeccl::test {

class Probing : public testing::Test {
 protected:
  Probing() {
    setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1);
    unsetenv("MOECCL_PROBE");
  }
  ~Probing() override {
    setenv("MOECCL_PROBE", "0", 1);
    unsetenv("XDG_CACHE_HOME");
  }

  std::filesystem::path kept() const { return folder_.path() / "moeccl"; }
  std::size_t files() const { return filesIn(kept()); }

  // The time of an all-to-all, by the links that the communicator chooses by.
  static double predicted(moecclComm_t comm) {
    moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
    cluster.comm = comm;
    moecclAlgorithmChoices_t choices = nullptr;
    moecclAlgorithmChoice_t first = MOECCL_ALGORITHM_CHOICE_INITIALIZER;
    check(moecclSelectAlgorithm(&cluster, "alltoall", 1 << 20, 1, &choices), comm);
    check(moecclAlgorithmChoicesGet(choices, 0, &first), comm);
    moecclAlgorithmChoicesDestroy(choices);
    return first.seconds;
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace moeccl::test
