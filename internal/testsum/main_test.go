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
		"names together what is skipped for one reason": {
			in: `{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:9: needs root: no\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: needs root: no\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestC"}`,
			ok: true, want: []string{"p TestA, TestB: needs root: no\n",
				"1 passed, 0 failed, 2 skipped"},
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
		"a package that does not end is a failure": {
			in: `{"Action":"start","Package":"p"}
{"Action":"pass","Package":"p","Test":"TestA"}`,
			want: []string{"it did not end", "1 passed, 1 failed, 0 skipped"},
		},
		"packages that are announced and never begin are failures": {
			in: `{"Action":"start","Package":"p"}
{"Action":"start","Package":"q [part]"}
{"Action":"start","Package":"p"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Elapsed":0.5}`,
			want: []string{"--- q [part]\nit did not end", "1 passed, 1 failed, 0 skipped"},
		},
		"what takes longest, without parts of tests": {
			in: `{"Action":"pass","Package":"p","Test":"TestA/one","Elapsed":7}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":8}
{"Action":"pass","Package":"p","Test":"TestB","Elapsed":9}
{"Action":"pass","Package":"p","Elapsed":17.5}`,
			ok: true, want: []string{
				"The slowest of 1 packages, which took 18 s:\n     17.5 s  p\n",
				"The slowest of 2 tests, which took 17 s:\n      9.0 s  p TestB\n      8.0 s  p TestA\n",
				"3 passed",
			},
		},
		"nothing ran": {in: `{"Action":"skip","Package":"p"}`,
			want: []string{"0 passed, 0 failed, 0 skipped"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			s := newSummary(&out)
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
