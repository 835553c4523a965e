// What the messages of a dispatch in latency mode hold: letters. A relay sorts the rows of those
// that come to it by rank, and each rank puts its rows where their experts begin.
#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/quantise.h"
#include "src/route/latency_pass.h"

namespace moeccl {

using routes::Here;
using routes::Home;
using routes::IndexedRows;
using routes::Relay;

void LatencyPass::Dispatch::reserve() {
  atRelay_.resize(pass_.relay_.sources.size());
  arrived_.resize(pass_.here_.from.size());
  if (pass_.shape_.quantises())
    quantised_.resize(bytesOf(pass_.shape_.maxTokens, pass_.shape_.sentRowBytes()));
}

void LatencyPass::Dispatch::begin(const Plan&, const std::byte* input, std::byte* output) {
  const RouteShape& shape = pass_.shape_;
  if (shape.quantises())
    quantise(shape.wire, shape.tokenDatatype, input, static_cast<std::size_t>(pass_.tokens()),
             static_cast<std::size_t>(shape.hidden), quantised_.data());
  input_ = shape.quantises() ? quantised_.data() : input;
  output_ = output;
  relayFilled_ = false;
}

std::size_t LatencyPass::Dispatch::mostBytes(const Op& op) const {
  const Topology& topology = pass_.topology_;
  const auto peer = static_cast<std::size_t>(op.peer);
  if (op.lane == routes::kRelayLane) {
    if (op.kind == OpKind::recv) return pass_.mostToRelay(topology.nodeOf(pass_.rank_));
    const IndexedRows& rows = pass_.home_.of(topology.nodeOf(op.peer)).rows;
    return pass_.letterBytes(1, rows.list.entries(), rows.rows(), pass_.shape_.hasWeights());
  }
  if (op.kind == OpKind::send)
    return pass_.mostFromRelay(
        pass_.paths_.relayed[static_cast<std::size_t>(topology.nodeOf(op.peer))].size(), op.peer);
  return pass_.mostFromRelay(pass_.paths_.relays[pass_.fromOfRank_[peer]].second.size(),
                             pass_.rank_);
}

std::size_t LatencyPass::Dispatch::write(const Op& op, std::byte* to) {
  std::byte* const begin = to;
  const std::size_t bytes = pass_.shape_.sentRowBytes();
  if (op.lane == routes::kRelayLane) {
    const Home::Share& share = pass_.home_.of(pass_.topology_.nodeOf(op.peer));
    to = pass_.writeList(share.rows.list, pass_.shape_.hasWeights(), to);
    for (const std::int32_t token : share.tokens)
      copyRow(to, input_ + bytesOf(token, bytes), bytes);
  } else {
    fillRelay();
    const Relay::Destination& destination =
        pass_.relay_.destinations[pass_.destinationOfRank_[static_cast<std::size_t>(op.peer)]];
    to = pass_.writeList(destination.rows.list, false, to);
    for (const Relay::Destination::Origin& origin : destination.origins)
      copyRow(to, rowOf(origin), bytes);
  }
  return static_cast<std::size_t>(to - begin);
}

bool LatencyPass::Dispatch::read(const Op& op, const std::byte* from, std::size_t bytes, Misfit*) {
  const auto peer = static_cast<std::size_t>(op.peer);
  if (op.lane == routes::kRelayLane) {
    const std::size_t i = pass_.sourceOfRank_[peer];
    IndexedRows& rows = pass_.relay_.sources[i].rows;
    atRelay_[i] = pass_.read(from, bytes, 1, pass_.shape_.hasWeights(), &rows);
    return atRelay_[i] != nullptr && rows.rows() <= pass_.shape_.maxTokens &&
           pass_.relay_.canHandOn(pass_.relay_.sources[i]);
  }
  const std::size_t i = pass_.fromOfRank_[peer];
  IndexedRows& rows = pass_.here_.from[i].rows;
  arrived_[i] =
      pass_.read(from, bytes, static_cast<int>(pass_.paths_.relays[i].second.size()), false, &rows);
  return arrived_[i] != nullptr && pass_.here_.holds(rows.list);
}

// Fills the relay's lists once, when all sources have told theirs.
void LatencyPass::Dispatch::fillRelay() {
  if (!std::exchange(relayFilled_, true)) pass_.relay_.fill(pass_.home_);
}

const std::byte* LatencyPass::Dispatch::rowOf(const Relay::Destination::Origin& origin) const {
  const auto source = static_cast<std::size_t>(origin.source);
  const Relay::Source& from = pass_.relay_.sources[source];
  const std::size_t bytes = pass_.shape_.sentRowBytes();
  if (from.rank != pass_.rank_) return atRelay_[source] + bytesOf(origin.row, bytes);
  const std::int32_t token = pass_.home_.of(from.node).tokens[static_cast<std::size_t>(origin.row)];
  return input_ + bytesOf(token, bytes);
}

bool LatencyPass::Dispatch::work(const Op&, Misfit*) {
  fillRelay();
  const Relay::Destination* const own = pass_.relay_.to(pass_.rank_);
  for (Here::From& from : pass_.here_.from)
    if (from.rank == pass_.rank_) {
      from.rows = own->rows;
      from.rows.list.weights.clear();
    }
  pass_.here_.fill();
  pass_.loads_.addRows(pass_.here_.rows());
  const std::size_t bytes = pass_.shape_.sentRowBytes();
  for (std::size_t i = 0; i < pass_.here_.from.size(); ++i) {
    const Here::From& from = pass_.here_.from[i];
    for (std::int32_t row = 0; row < from.rows.rows(); ++row) {
      const std::byte* const at = from.rank == pass_.rank_
                                      ? rowOf(own->origins[static_cast<std::size_t>(row)])
                                      : arrived_[i] + bytesOf(row, bytes);
      for (std::int32_t entry = from.rows.rowBegins[row]; entry < from.rows.rowBegins[row + 1];
           ++entry)
        setRow(from.places[entry], at);
    }
  }
  return true;
}

void LatencyPass::Dispatch::setRow(std::int32_t place, const std::byte* from) {
  const RouteShape& shape = pass_.shape_;
  std::byte* const to = output_ + bytesOf(place, shape.rowBytes());
  if (shape.quantises())
    dequantise(shape.wire, shape.tokenDatatype, from, 1, static_cast<std::size_t>(shape.hidden),
               to);
  else
    std::memcpy(to, from, shape.rowBytes());
}

}  // namespace moeccl
