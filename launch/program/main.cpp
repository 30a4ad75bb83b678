// SPDX-License-Identifier: Apache-2.0
#include "launch/program/run.h"

int main(int argc, char** argv) { return lockstep::run(argc, argv); }
