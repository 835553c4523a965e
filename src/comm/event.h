// A place in a stream: complete when all work before it is.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "src/comm/domain.h"

namespace moeccl {

class Event {
 public:
  // What one recording of an event stands for. The domain's lock is held by whoever looks at it.
  struct Place {
    bool over = false;
    moecclResult_t result = moecclSuccess;
    std::string text;  // of the error
    std::function<void(moecclResult_t)> callback;
    bool hasCallback = false;

    void end(Domain& domain, moecclResult_t how, const std::string& why) {
      over = true;
      result = how;
      text = why;
      if (callback) domain.callSoon([call = std::move(callback), how] { call(how); });
      callback = nullptr;
    }
  };

  // Stands for `place` from now on; both are null where that is complete already.
  void record(std::shared_ptr<Domain> domain, std::shared_ptr<Place> place) {
    domain_ = std::move(domain);
    place_ = std::move(place);
    called_ = false;
  }
  // Both throw the error of the work.
  bool query();
  void synchronize();
  // Throws Error where there is one already.
  void setCallback(std::function<void(moecclResult_t)> callback);

  const std::shared_ptr<Domain>& domain() const { return domain_; }
  const std::shared_ptr<Place>& place() const { return place_; }

 private:
  std::shared_ptr<Domain> domain_;
  std::shared_ptr<Place> place_;
  bool called_ = false;  // of what is complete
};

}  // namespace moeccl
