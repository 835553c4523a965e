// What the messages of a combine in latency mode hold: rows, which relays add up by token, and the
// ranks of the tokens by node.
#include <algorithm>
#include <cstring>

#include "kernels/reduce.h"
#include "kernels/weigh.h"
#include "src/route/latency_pass.h"

namespace moeccl {

using routes::Home;
using routes::Relay;

void LatencyPass::Combine::reserve() {
  const auto nodes = static_cast<std::size_t>(pass_.topology_.nodes());
  const routes::Experts& experts = pass_.shape_.experts;
  terms_.resize(pass_.relay_.destinations.size());
  back_.resize(nodes);
  next_.resize(nodes);
  std::int64_t own = 0;
  for (const Relay::Source& source : pass_.relay_.sources) own += source.rank == pass_.rank_;
  sums_.resize(bytesOf(own * pass_.shape_.maxTokens, pass_.shape_.combineRowBytes()));
  const std::size_t most = std::max(nodes, static_cast<std::size_t>(pass_.shape_.choices) *
                                               static_cast<std::size_t>(experts.grid.esp));
  sources_.reserve(most);
  weights_.reserve(most);
}

void LatencyPass::Combine::begin(const Plan&, const std::byte* input, std::byte* output) {
  input_ = input;
  output_ = output;
}

std::size_t LatencyPass::Combine::mostBytes(const Op& op) const {
  const auto peer = static_cast<std::size_t>(op.peer);
  std::int64_t rows = 0;
  if (op.lane == routes::kHolderLane)
    rows = op.kind == OpKind::send
               ? pass_.here_.from[pass_.fromOfRank_[peer]].rows.list.entries()
               : pass_.relay_.destinations[pass_.destinationOfRank_[peer]].rows.list.entries();
  else
    rows = op.kind == OpKind::send ? pass_.relay_.sources[pass_.sourceOfRank_[peer]].rows.rows()
                                   : pass_.home_.of(pass_.topology_.nodeOf(op.peer)).rows.rows();
  return bytesOf(rows, pass_.shape_.combineRowBytes());
}

std::size_t LatencyPass::Combine::write(const Op& op, std::byte* to) {
  const std::byte* const begin = to;
  const std::size_t bytes = pass_.shape_.combineRowBytes();
  const auto peer = static_cast<std::size_t>(op.peer);
  if (op.lane == routes::kHolderLane) {
    for (const std::int32_t place : pass_.here_.from[pass_.fromOfRank_[peer]].places)
      copyRow(to, input_ + bytesOf(place, bytes), bytes);
  } else {
    const Relay::Source& source = pass_.relay_.sources[pass_.sourceOfRank_[peer]];
    for (std::int32_t row = 0; row < source.rows.rows(); ++row, to += bytes) sum(source, row, to);
  }
  return static_cast<std::size_t>(to - begin);
}

bool LatencyPass::Combine::read(const Op& op, const std::byte* from, std::size_t bytes, Misfit*) {
  if (bytes != mostBytes(op)) return false;
  if (op.lane == routes::kHolderLane)
    terms_[pass_.destinationOfRank_[static_cast<std::size_t>(op.peer)]] = from;
  else
    back_[static_cast<std::size_t>(pass_.topology_.nodeOf(op.peer))] = from;
  return true;
}

void LatencyPass::Combine::sum(const Relay::Source& source, std::int32_t row, std::byte* to) {
  const std::size_t bytes = pass_.shape_.combineRowBytes();
  const moecclDataType_t datatype = pass_.shape_.datatype;
  sources_.clear();
  weights_.clear();
  for (std::int32_t t = source.termBegins[row]; t < source.termBegins[row + 1]; ++t) {
    const Relay::Source::Term& term = source.terms[t];
    const auto index = static_cast<std::size_t>(term.destination);
    const Relay::Destination& from = pass_.relay_.destinations[index];
    if (from.rank == pass_.rank_) {
      const auto own = pass_.fromOfRank_[static_cast<std::size_t>(pass_.rank_)];
      sources_.push_back(input_ + bytesOf(pass_.here_.from[own].places[term.entry], bytes));
    } else {
      sources_.push_back(terms_[index] + bytesOf(term.entry, bytes));
    }
    if (pass_.shape_.hasWeights()) weights_.push_back(from.rows.list.weights[term.entry]);
  }
  if (pass_.shape_.hasWeights())
    addWeighted(datatype, to, sources_.data(), weights_.data(), 1, sources_.size(), bytes);
  else
    reduce(moecclSum, datatype, to, sources_.data(), 1, sources_.size(), bytes);
}

// Adds up the rows of the rank's own tokens for which nobody else is the relay. A token's only sum
// is its output.
void LatencyPass::Combine::sumOwn() {
  const std::size_t bytes = pass_.shape_.combineRowBytes();
  std::byte* to = sums_.data();
  for (const Relay::Source& source : pass_.relay_.sources) {
    if (source.rank != pass_.rank_) continue;
    const Home::Share& share = pass_.home_.of(source.node);
    back_[static_cast<std::size_t>(source.node)] = to;
    for (std::int32_t row = 0; row < share.rows.rows(); ++row, to += bytes) {
      const std::int32_t token = share.tokens[static_cast<std::size_t>(row)];
      sum(source, row, pass_.home_.nodesOf(token) == 1 ? output_ + bytesOf(token, bytes) : to);
    }
  }
}

void LatencyPass::Combine::finish(std::int32_t token) {
  const std::size_t bytes = pass_.shape_.combineRowBytes();
  std::byte* const to = output_ + bytesOf(token, bytes);
  sources_.clear();
  bool own = false;
  for (int node = 0; node < pass_.topology_.nodes(); ++node) {
    const std::vector<std::int32_t>& tokens = pass_.home_.of(node).tokens;
    std::size_t& next = next_[static_cast<std::size_t>(node)];
    if (next == tokens.size() || tokens[next] != token) continue;
    own = relayOf(pass_.topology_, pass_.way_, pass_.rank_, node) == pass_.rank_;
    sources_.push_back(back_[static_cast<std::size_t>(node)] + next++ * bytes);
  }
  if (sources_.empty())
    std::memset(to, 0, bytes);
  else if (sources_.size() > 1)
    reduce(moecclSum, pass_.shape_.datatype, to, sources_.data(), 1, sources_.size(), bytes);
  else if (!own)
    std::memcpy(to, sources_[0], bytes);
}

bool LatencyPass::Combine::work(const Op&, Misfit*) {
  sumOwn();
  std::ranges::fill(next_, 0);
  for (std::int32_t token = 0; token < pass_.home_.tokens(); ++token) finish(token);
  return true;
}

}  // namespace moeccl
