// Compares questions field by field, and works out the passes and the schedules that one is about.
#include "src/model/layer_question.h"

#include "src/model/schedule_list.h"

namespace moeccl {
namespace {

// All that may be wrong; what is random costs nothing.
bool sameGate(const moecclMoeConfig_t& a, const moecclMoeConfig_t& b) {
  return a.gate == b.gate && a.switchGate.jitter == b.switchGate.jitter &&
         a.noisyTopK.importanceWeight == b.noisyTopK.importanceWeight &&
         a.noisyTopK.loadWeight == b.noisyTopK.loadWeight &&
         a.sigmoid.expertGroups == b.sigmoid.expertGroups &&
         a.sigmoid.topGroups == b.sigmoid.topGroups &&
         a.sigmoid.routingScale == b.sigmoid.routingScale &&
         a.sigmoid.sequenceTokens == b.sigmoid.sequenceTokens;
}

bool same(const moecclMoeConfig_t& a, const moecclMoeConfig_t& b) {
  return a.tokens == b.tokens && a.embedding == b.embedding && a.hidden == b.hidden &&
         a.experts == b.experts && a.topK == b.topK && a.capacityFactor == b.capacityFactor &&
         a.capacityGroups == b.capacityGroups && a.chunks == b.chunks &&
         a.activation == b.activation && a.datatype == b.datatype && a.dropless == b.dropless &&
         a.residual == b.residual && a.minCapacity == b.minCapacity &&
         a.tokenRouting == b.tokenRouting && sameGate(a, b);
}

}  // namespace

bool same(const LayerQuestion& a, const LayerQuestion& b) {
  return a.pass == b.pass && a.requested == b.requested && same(a.layer, b.layer);
}

Subject subjectOf(const LayerQuestion& question, const moecclGridShape_t& grid) {
  const LayerShape shape = layerShape(question.layer, moecclScheduleAuto, grid);
  Subject subject{{}, {}, {question.layer.chunks == 0, question.layer.tokenRouting == 0}};
  if (question.pass & moecclPassForward) subject.passes.push_back(Pass::forward);
  if (question.pass & moecclPassBackward) subject.passes.push_back(Pass::backward);
  for (int number = 1; number < scheduleNumbers(); ++number) {
    const auto schedule = static_cast<moecclSchedule_t>(number);
    const bool wanted = question.requested == moecclScheduleAuto || question.requested == schedule;
    // A config that an offered schedule cannot have is refused, whether that one is chosen or not.
    if (wanted && offers(schedule, shape))
      subject.offered.push_back(layerShape(question.layer, schedule, grid));
  }
  if (subject.offered.empty()) layerShape(question.layer, question.requested, grid);  // says why
  return subject;
}

}  // namespace moeccl
