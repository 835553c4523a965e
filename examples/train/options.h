// What the trainer is asked to do.
#pragma once

#include <moeccl/moe.h>

#include <cstdint>
#include <string>
#include <vector>

#include "model.h"

namespace train {

struct Options {
  ModelConfig model;               // without `characters`, which the text decides
  int stages = 1;                  // of the pipeline
  int nMp = 0, nEp = 0, nEsp = 0;  // of a stage; 0: as with the quickstart
  moecclSchedule_t schedule = moecclScheduleAuto;

  std::vector<std::string> texts;
  std::int64_t batch = 16;  // samples of a step, on all ranks together
  std::int64_t steps = 500;
  double learningRate = 3e-3;  // at its height
  std::int64_t warmUp = 50;    // steps until then
  double balance = 0.01;       // of the auxiliary loss in what is minimised

  std::string teacher;              // a checkpoint; "": none
  std::int64_t teacherSteps = 350;  // the first ones
  double teacherWeight = 1;

  std::int64_t report = 10;  // steps between two lines
  std::string log;           // CSV; "": none
  std::string checkpoint;    // "": none
  std::int64_t checkpointEvery = 100;
  bool resume = false;
  bool help = false;
};

// Throws std::invalid_argument, which names the option, its value and what would be right.
Options parseOptions(int count, char** arguments);

std::string usage();

// Numbers as --experts takes them: "4,8". Throws std::invalid_argument.
std::vector<std::int64_t> numbersOf(const char* option, const std::string& text);
std::string joined(const std::vector<std::int64_t>& numbers);

}  // namespace train
