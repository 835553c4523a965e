// Ranks as threads, for tests of moeccl.hpp.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <moeccl/moeccl.hpp>
#include <thread>
#include <vector>

namespace moeccl::test {

inline void asRanks(int ranks, const std::function<void(Communicator&)>& body) {
  moecclUniqueId id;
  check(moecclGetUniqueId(&id));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      Communicator comm = Communicator::init(ranks, id, rank);
      ASSERT_EQ(comm.rank(), rank);
      body(comm);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace moeccl::test
