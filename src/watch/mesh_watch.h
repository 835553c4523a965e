// The watch of ranks that are processes. A thread of its own, on which no signal is delivered,
// looks at
//   - the processes of this node, by the kernel's word (pidfd),
//   - the control connections (mesh.h): one that ends, without a goodbye before, is the end of its
//     process or host,
//   - what this rank wants to tell.
// Each rank passes on what it has not heard before, so all of them hear it.
//
// A connection with a rank that does not answer breaks by TCP's own probes, which the kernel of a
// process answers that computes, is stopped or reads nothing. One that breaks, or is reset by what
// lies between, is made again if that succeeds before the host has been silent for
// failureDetectionMs (redial.h), and nothing that was told is lost (control_stream.h). Two ranks
// that cannot reach each other are lost to their communicators, also where others can reach both;
// each is told so if it can be.
#pragma once

#include <memory>

#include "src/watch/mesh.h"
#include "src/watch/watch.h"

namespace moeccl {

// Collective. Throws Error.
std::unique_ptr<Watch> makeMeshWatch(Oob& oob, const Topology& topology,
                                     const MeshOptions& options);
// Over connections that exist.
std::unique_ptr<Watch> makeMeshWatch(int rank, const Topology& topology, const MeshOptions& options,
                                     Mesh mesh);

}  // namespace moeccl
