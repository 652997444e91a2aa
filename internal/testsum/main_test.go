package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestSummary(t *testing.T) {
	tests := map[string]struct {
		in   string
		ok   bool
		want []string
	}{
		"passes and names skips": {
			in: `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: needs root: no\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestB"}
{"Action":"pass","Package":"p","Elapsed":0.5}`,
			ok: true, want: []string{"p TestA: needs root: no", "1 passed, 0 failed, 1 skipped"},
		},
		"shows what failed": {
			in: `{"Action":"output","Package":"p","Test":"TestA","Output":"boom\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`,
			want: []string{"boom", "0 passed, 1 failed, 0 skipped"},
		},
		"a package that does not build is a failure": {
			in: `{"Action":"output","Package":"p","Output":"p [build failed]\n"}
{"Action":"fail","Package":"p"}`,
			want: []string{"build failed", "0 passed, 1 failed, 0 skipped"},
		},
		"nothing ran": {in: `{"Action":"skip","Package":"p"}`, want: []string{"0 passed, 0 failed, 0 skipped"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			s := &summary{out: &out, output: map[key][]string{}}
			if err := s.read(strings.NewReader(tc.in)); err != nil {
				t.Fatal(err)
			}
			if ok := s.report(); ok != tc.ok {
				t.Errorf("ok = %v, want %v", ok, tc.ok)
			}
			for _, want := range tc.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("output lacks %q:\n%s", want, out.String())
				}
			}
		})
	}
}
