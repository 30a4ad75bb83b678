// SPDX-License-Identifier: Apache-2.0
//
// Pieces of the page: tables, and numbers as people read them. What is called html is markup already; all
// else is text, which is escaped here.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// "12,345"; "0.0123"; a dash for what is not known.
std::string number_text(double value, int significant = 4);
// "83.2 %" of 0.832.
std::string percent_text(double fraction);
// "1:02:03"; "12.3 s", "4.56 ms" and the like for what is short.
std::string seconds_text(double seconds);
// "12.5 MiB".
std::string bytes_text(double bytes);
// "2024-01-31 12:00:00" of Unix seconds, in UTC.
std::string utc_text(double unix_seconds);

struct HtmlCell {
  std::string html;
  bool number = false;  // aligned right
};
HtmlCell text_cell(const std::string& text);
HtmlCell number_cell(const std::string& text);

struct HtmlTable {
  std::vector<HtmlCell> heads;
  std::vector<std::vector<HtmlCell>> rows;
};

// Scrolls sideways in a box of its own where it is too wide.
std::string to_html(const HtmlTable& table);

enum class CardUse { tells, leads };
// A figure in a box. The name is markup.
std::string html_card(const std::string& name, const std::string& value, const std::string& more,
                      CardUse use = CardUse::tells);

// A whole page that loads nothing. Body and footer are markup; the footer begins with who wrote it.
std::string html_page(const std::string& title, const std::string& body, const std::string& footer);

// A bar that fills this share of its line, in the colour of that class.
std::string html_bar(double fraction, const std::string& color_class);

}  // namespace lockstep
