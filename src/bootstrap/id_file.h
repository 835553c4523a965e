// How ranks get a unique id by a file, which is rank 0's. Nobody else can read it, and no rank
// takes that of another user, or of a run that has ended.
#pragma once

#include <optional>
#include <string>

#include "moeccl/moeccl.h"

namespace moeccl {

// The file of an id while it lives.
class IdFile {
 public:
  // Publishes the id at `path`, whole or not at all, in place of nothing but the file of a run that
  // has ended. Throws Error: moecclInvalidArgument where there is another, moecclSystemError.
  IdFile(const std::string& path, const moecclUniqueId& id);
  ~IdFile();
  IdFile(const IdFile&) = delete;
  IdFile& operator=(const IdFile&) = delete;

 private:
  const std::string path_;
};

// What a rank finds at the path.
struct FoundId {
  std::optional<moecclUniqueId> id;
  bool left = false;  // that of a run that has ended
};
// Throws Error for what is no file of an id, or not this user's: moecclInvalidArgument,
// moecclSystemError where it cannot be read.
FoundId readIdFile(const std::string& path);

}  // namespace moeccl
