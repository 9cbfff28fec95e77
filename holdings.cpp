// holdings.cpp - the body of holdings.h.
#include "holdings.h"
#include "files.h"
#include <algorithm>

namespace baretrain {

namespace {

constexpr double left = 76, width = 644, model = 96, gap = 4;   // pixels; model: the height of all units

std::string box(double x, double y, double w, double h) {   // a path
    return format("M%.1f %.2fh%.1fv%.2fh%.1fz", x, y, w, h, -w);
}
std::string fill(const std::string& boxes, const char* colour, double opacity) {
    return format("<path fill=\"%s\" fill-opacity=\"%.2g\" d=\"%s\"/>\n", colour, opacity, boxes.c_str());
}
std::string words(double x, double y, const char* anchor, const std::string& text) {
    return format("<text x=\"%.2f\" y=\"%.2f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, text.c_str());
}

// A rank's bar: pale as high as the model, filled where the rank has it, and under it the room.
std::string bar(const Holding& h, double x, double y, double w, const char* colour) {
    std::string parts;
    for (const auto& [from, to] : h.parts) parts += box(x, y + from * model, w, (to - from) * model);
    return fill(box(x, y, w, model), "currentColor", 0.08) + fill(parts, colour, 1) +
           (h.room > 0 ? fill(box(x, y + model + gap, w, h.room * model), colour, 0.45) : "");
}

}  // namespace

std::string holdings_svg(const std::vector<LayoutHoldings>& layouts) {
    const std::pair<const char*, const char*> rows[] = {
        {"weights", "#4c78a8"}, {"gradients", "#f58518"}, {"optimizer", "#54a24b"}};
    const auto& units = layouts[0].ranks[0][0].parts;
    const double column = width / double(layouts.size());
    std::string svg;
    double y = 24;
    for (int what = 0; what < 3; ++what) {
        double room = 0;
        for (const LayoutHoldings& l : layouts)
            for (const auto& rank : l.ranks) room = std::max(room, rank[size_t(what)].room);
        const double label = y + model + gap + room * model + 16;
        svg += words(left - 12, y + model / 2, "end", rows[what].first);
        for (size_t i = 0; i < layouts.size(); ++i) {
            const LayoutHoldings& l = layouts[i];
            const double x = left + double(i) * column, wide = column - 24, w = wide / double(l.ranks.size());
            for (size_t r = 0; r < l.ranks.size(); ++r)
                svg += bar(l.ranks[r][size_t(what)], x + double(r) * w, y, 0.85 * w, rows[what].second);
            std::string lines;
            for (const auto& [from, to] : units) lines += box(x, y + from * model, wide, 0.4);
            const std::string size = format("%.4g MB", double(l.ranks[0][size_t(what)].bytes) / 1e6);
            svg += fill(lines, "currentColor", 1) + words(x + wide / 2, label, "middle", size);
            if (what == 0) svg += words(x + wide / 2, 14, "middle", l.name);
        }
        y = label + 20;
    }
    svg += words(left, y, "start", format("a bar a rank: 0 to %zu; lines: the ends, then the blocks; ",
                                          layouts[0].ranks.size() - 1) + "pale, below: room for units at work");
    return format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 %.0f\" ", y + 10) +
           "fill=\"currentColor\" font-size=\"12\" role=\"img\" aria-label=\"who holds what\">\n<style>" +
           "svg{color:#24292f;font-family:sans-serif}@media(prefers-color-scheme:dark){svg{color:#d0d7de}}</style>\n" +
           svg + "</svg>\n";
}

}  // namespace baretrain
