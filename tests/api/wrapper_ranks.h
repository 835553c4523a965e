// Ranks as threads, for tests of moeccl.hpp.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <moeccl/moeccl.hpp>

#include "tests/job.h"

namespace moeccl::test {

inline void asRanks(int ranks, const std::function<void(Communicator&)>& body) {
  moecclUniqueId id;
  check(moecclGetUniqueId(&id));
  asThreads(ranks, [&](int rank) {
    Communicator comm = Communicator::init(ranks, id, rank);
    ASSERT_EQ(comm.rank(), rank);
    body(comm);
  });
}

}  // namespace moeccl::test
