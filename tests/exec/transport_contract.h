// What every transport owes its callers (src/exec/transport.h), as tests over a Kind.
#pragma once

#include <gtest/gtest.h>

#include <iostream>

#include "tests/exec/transport_world.h"

namespace moeccl::test {

class TransportContract : public testing::TestWithParam<Kind> {
 protected:
  // Runs the job, which must not print anything. A job in which ranks die may.
  void run(int ranks, const std::function<void(Member&)>& body) {
    EXPECT_EQ(runJob(GetParam(), ranks, body), "");
  }
  void runDeadly(int ranks, const std::function<void(Member&)>& body) {
    if (!GetParam().outlivesPeers) GTEST_SKIP() << "not promised";
    const std::string printed = runJob(GetParam(), ranks, body);
    if (HasFailure()) std::cout << printed;
  }
};

inline std::string nameOf(const testing::TestParamInfo<Kind>& info) { return info.param.name; }

}  // namespace moeccl::test
