// Visits the nodes of a graph, each after all the nodes that it waits for.
#pragma once

#include <cstdint>
#include <vector>

namespace moeccl::verification {

// `waits(node, list)` appends to `list` the nodes that `node` waits for; `visit(node)` is called
// once for each. Returns nodes that wait for each other in a circle, each for the next and the last
// for the first, and stops there; or nothing when every node was visited.
template <typename Waits, typename Visit>
std::vector<std::int64_t> visitInOrder(std::int64_t nodes, const Waits& waits, const Visit& visit) {
  enum class State : std::uint8_t { untouched, open, visited };
  struct Frame {
    std::int64_t node;
    std::size_t pending;  // what it still waits for: pending[this ...]
  };
  std::vector<State> state(static_cast<std::size_t>(nodes), State::untouched);
  std::vector<Frame> frames;
  std::vector<std::int64_t> pending;
  const auto enter = [&](std::int64_t node) {
    state[node] = State::open;
    frames.push_back({node, pending.size()});
    waits(node, pending);
  };
  for (std::int64_t root = 0; root < nodes; ++root) {
    if (state[root] == State::visited) continue;
    enter(root);
    while (!frames.empty()) {
      if (pending.size() == frames.back().pending) {
        visit(frames.back().node);
        state[frames.back().node] = State::visited;
        frames.pop_back();
        continue;
      }
      const std::int64_t next = pending.back();
      pending.pop_back();
      if (state[next] == State::visited) continue;
      if (state[next] == State::untouched) {
        enter(next);
        continue;
      }
      std::vector<std::int64_t> circle;
      for (std::size_t i = frames.size(); circle.empty() || circle.back() != next; --i)
        circle.push_back(frames[i - 1].node);
      return {circle.rbegin(), circle.rend()};
    }
  }
  return {};
}

}  // namespace moeccl::verification
