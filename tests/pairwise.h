// Rows of a table whose full product is too large: every value of every column meets every value of
// every other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <set>
#include <tuple>
#include <vector>

namespace moeccl::test {

// A row says by number which value each column has. `fits` tells whether two values can stand in
// one row; such a pair must leave room for some value in every other column. The rows are the same
// in every run.
using Row = std::vector<std::size_t>;
using Fits = std::function<bool(std::size_t column, std::size_t value, std::size_t otherColumn,
                                std::size_t otherValue)>;

inline std::vector<Row> pairwise(const std::vector<std::size_t>& values, const Fits& fits) {
  using Pair = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>;
  std::set<Pair> missing;
  for (std::size_t a = 0; a < values.size(); ++a)
    for (std::size_t b = a + 1; b < values.size(); ++b)
      for (std::size_t i = 0; i < values[a]; ++i)
        for (std::size_t k = 0; k < values[b]; ++k)
          if (fits(a, i, b, k)) missing.insert({a, i, b, k});
  std::vector<Row> rows;
  while (!missing.empty()) {
    const auto [first, firstValue, second, secondValue] = *missing.begin();
    Row row(values.size(), 0);
    std::vector<std::size_t> chosen{first, second};
    row[first] = firstValue;
    row[second] = secondValue;
    for (std::size_t column = 0; column < values.size(); ++column) {
      if (column == first || column == second) continue;
      int most = -1;
      // Where values serve alike, rows take turns.
      for (std::size_t turn = 0; turn < values[column]; ++turn) {
        const std::size_t value = (turn + rows.size()) % values[column];
        int served = 0;
        for (std::size_t other : chosen) {
          const auto [a, i, b, k] = column < other ? Pair{column, value, other, row[other]}
                                                   : Pair{other, row[other], column, value};
          if (!fits(a, i, b, k)) {
            served = -1;
            break;
          }
          served += missing.contains({a, i, b, k});
        }
        if (served <= most) continue;
        most = served;
        row[column] = value;
      }
      chosen.push_back(column);
    }
    for (std::size_t a = 0; a < values.size(); ++a)
      for (std::size_t b = a + 1; b < values.size(); ++b) missing.erase({a, row[a], b, row[b]});
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace moeccl::test
