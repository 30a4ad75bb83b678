// SPDX-License-Identifier: Apache-2.0
//
// A computed table of one column, a common first example in Keras courses: 2,100 people aged 13 to 100 took
// part in the trial of a drug. Of 1,050 younger people (13 to 64 years) 50 have side effects, of 1,050 older
// ones 1,000: about 5 % of the labels contradict the age.
#pragma once

#include <memory>

#include "data/dataset.h"

namespace lockstep {

// A sample is the age, scaled from [13, 100] to [0, 1]; the classes are "no side effects" and "side effects".
// People are in random order; the last tenth of them is the test split. The same on every machine.
std::unique_ptr<Dataset> open_drug_trial(Split split);

}  // namespace lockstep
