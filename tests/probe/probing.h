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
    moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
    query.cluster = &cluster;
    query.collective = "alltoall";
    query.bytes = 1 << 20;
    moecclChoices_t choices = nullptr;
    moecclChoice_t first = MOECCL_CHOICE_INITIALIZER;
    check(moecclSelect(&query, &choices, nullptr), comm);
    check(moecclChoicesGet(choices, 0, -1, &first), comm);
    moecclChoicesDestroy(choices);
    return first.seconds;
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace moeccl::test
