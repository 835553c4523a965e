// Memory that callers lend to UCX for the time of a transfer, as a datatype of ours: UCX asks for
// bytes, or hands them over, piece by piece. So a caller gets his memory back at any time, also
// while UCX (1.13), which takes back no send, keeps the request.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

namespace moeccl {

class UcxLoans {
 public:
  // Of a send or a receive. Both null: given back; the peer gets zeros, and what comes is dropped.
  struct Loan {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    std::size_t bytes = 0;
    std::unique_ptr<std::byte[]> copy = nullptr;

    // A receiver may take a small message for one that is not cancelled, so it stays what it was.
    // Of a larger one, only the beginning comes before the word that it is.
    void giveBack();
  };

  UcxLoans();
  ~UcxLoans();
  UcxLoans(const UcxLoans&) = delete;
  UcxLoans& operator=(const UcxLoans&) = delete;

  // A count of one, at the loan's address, is its message.
  ucp_datatype_t datatype() const { return datatype_; }
  Loan* begin(Loan loan);
  // Once UCX is through with the request.
  void end(Loan* loan);

 private:
  ucp_datatype_t datatype_;
  std::deque<Loan> loans_;
  std::vector<Loan*> free_;
};

}  // namespace moeccl
