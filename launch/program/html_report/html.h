// SPDX-License-Identifier: Apache-2.0
//
// Building blocks of the page: tables and formatted numbers. Names with html are markup already; all other
// text is escaped here.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// "12,345"; "0.0123"; a dash for values that are not finite.
std::string number_text(double value, int significant = 4);
// "83.2 %" of 0.832.
std::string percent_text(double fraction);
// "1:02:03"; "12.3 s" or "4.56 ms" for short times.
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
// A number, as markup, and a bar that fills this fraction of its line, in the colour of the class.
HtmlCell barred_cell(const std::string& html, double fraction, const std::string& color_class);

struct HtmlTable {
  std::vector<HtmlCell> heads;
  std::vector<std::vector<HtmlCell>> rows;
};

// The table scrolls horizontally within its own box if it is too wide.
std::string to_html(const HtmlTable& table);

enum class CardUse { tells, leads };
// A figure in a box. The name is markup.
std::string html_card(const std::string& name, const std::string& value, const std::string& more,
                      CardUse use = CardUse::tells);

// A complete page that loads no other file. body and footer are markup; the version of Lockstep precedes the
// footer.
std::string html_page(const std::string& title, const std::string& body, const std::string& footer);

}  // namespace lockstep
