// Command gen writes the Go side of what the BPF C headers define: map layouts and enums from a
// compiled object's BTF, drop reasons and their documentation from bpf/lib/reasons.h.
//
//	go run ./internal/gen -object FILE.o -reasons bpf/lib/reasons.h -types FILE.go -reasons-go FILE.go -reasons-doc FILE.md
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	object := flag.String("object", "", "compiled BPF object to read map types from")
	reasons := flag.String("reasons", "", "C header with the list of drop reasons")
	typesOut := flag.String("types", "", "Go file to write map types to")
	reasonsOut := flag.String("reasons-go", "", "Go file to write drop reasons to")
	docOut := flag.String("reasons-doc", "", "Markdown file to write drop reasons to")
	flag.Parse()
	if err := run(*object, *reasons, *typesOut, *reasonsOut, *docOut); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(object, header, typesOut, reasonsOut, docOut string) error {
	types, err := generateTypes(object)
	if err != nil {
		return err
	}
	list, err := parseReasons(header)
	if err != nil {
		return err
	}
	code, err := generateReasons(list)
	if err != nil {
		return err
	}
	for path, data := range map[string][]byte{typesOut: types, reasonsOut: code,
		docOut: reasonsDoc(list)} {
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
