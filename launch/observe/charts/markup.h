// SPDX-License-Identifier: Apache-2.0
//
// Untrusted text inside HTML, SVG and XML; pieces of SVG.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// Escapes the text of an element, or of an attribute in double quotes. Control characters, which XML does not
// allow, become blanks; bytes that are not UTF-8 are written as escapes.
std::string in_markup(std::string_view text);

// An <svg> element of this size in pixels. attributes: further ones, each after a blank.
std::string svg_element(double width, double height, std::string_view attributes, std::string_view content);
// Appends a point to the data of a <path> of straight lines.
void add_point(std::string& path, double x, double y);

}  // namespace lockstep
