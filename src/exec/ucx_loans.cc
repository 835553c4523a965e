// Packs pieces of lent memory as UCX asks for them, or zeros where it was given back.
#include "src/exec/ucx_loans.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace moeccl {
namespace {

using Loan = UcxLoans::Loan;

// UCX sends larger ones by rendezvous.
constexpr std::size_t kSmall = std::size_t{64} << 10;

// UCX passes on what it was given as the buffer.
void* start(void*, const void* loan, std::size_t) { return const_cast<void*>(loan); }

std::size_t sizeOf(void* loan) { return static_cast<Loan*>(loan)->bytes; }

std::size_t pack(void* loan, std::size_t offset, void* piece, std::size_t room) {
  const Loan& lent = *static_cast<Loan*>(loan);
  const std::size_t bytes = std::min(room, lent.bytes - offset);
  if (bytes == 0) return 0;
  if (lent.from != nullptr)
    std::memcpy(piece, lent.from + offset, bytes);
  else
    std::memset(piece, 0, bytes);
  return bytes;
}

// Not every way on which UCX (1.13) ends a request comes by here.
void finish(void*) {}

const ucp_generic_dt_ops_t kOperations = {.start_pack = start,
                                          .start_unpack = nullptr,
                                          .packed_size = sizeOf,
                                          .pack = pack,
                                          .unpack = nullptr,
                                          .finish = finish};

}  // namespace

UcxLoans::UcxLoans() {
  const ucs_status_t status = ucp_dt_create_generic(&kOperations, nullptr, &datatype_);
  if (status != UCS_OK)
    throw std::runtime_error(std::string("UCX: making a datatype: ") + ucs_status_string(status));
}

void UcxLoans::Loan::giveBack() {
  const std::byte* const lent = std::exchange(from, nullptr);
  if (lent == nullptr || bytes > kSmall) return;
  copy = std::make_unique_for_overwrite<std::byte[]>(bytes);
  std::memcpy(copy.get(), lent, bytes);
  from = copy.get();
}

UcxLoans::~UcxLoans() { ucp_dt_destroy(datatype_); }

UcxLoans::Loan* UcxLoans::begin(const std::byte* from, std::size_t bytes) {
  if (free_.empty()) free_.push_back(&loans_.emplace_back());
  Loan* const loan = free_.back();
  free_.pop_back();
  loan->from = from;
  loan->bytes = bytes;
  return loan;
}

void UcxLoans::end(Loan* loan) {
  if (loan == nullptr) return;
  loan->copy.reset();
  free_.push_back(loan);
}

}  // namespace moeccl
