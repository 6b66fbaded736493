// Reads an exposition in the text format of Prometheus from standard input and prints what its linter finds, as
// `promtool check metrics` does; ends with 1 if that is anything.
package main

import (
	"fmt"
	"os"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func main() {
	problems, err := promlint.New(os.Stdin).Lint()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for _, problem := range problems {
		fmt.Println(problem.Metric, problem.Text)
	}
	if len(problems) > 0 {
		os.Exit(1)
	}
}
