// Memory that callers lend to UCX for the time of a send, as a datatype of ours: UCX asks for it
// piece by piece. So a caller gets his memory back at any time, also while UCX (1.13), which takes
// back no send, keeps the request.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

namespace moeccl {

class UcxLoans {
 public:
  struct Loan {
    const std::byte* from = nullptr;  // null: given back, and zeros are sent instead
    std::size_t bytes = 0;
    std::unique_ptr<std::byte[]> copy = nullptr;

    // A small message stays what it was, by a copy: it may be received before the word that it is
    // cancelled. That comes before a larger one, whose data leave only when they are asked for.
    void giveBack();
  };

  UcxLoans();
  ~UcxLoans();
  UcxLoans(const UcxLoans&) = delete;
  UcxLoans& operator=(const UcxLoans&) = delete;

  // A count of one, at the loan's address, is its message.
  ucp_datatype_t datatype() const { return datatype_; }
  Loan* begin(const std::byte* from, std::size_t bytes);
  // Once UCX is through with the request.
  void end(Loan* loan);

 private:
  ucp_datatype_t datatype_;
  std::deque<Loan> loans_;
  std::vector<Loan*> free_;
};

}  // namespace moeccl
