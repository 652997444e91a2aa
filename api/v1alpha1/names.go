package v1alpha1

import (
	"strconv"
	"strings"
)

const (
	maxLabel = 63
	maxName  = 253
)

const nameRule = "want at most 253 of a-z, 0-9, '-' and '.', each part between dots beginning and ending with a letter or digit"

// CheckName says what is wrong with the name of an object (DNS-1123 subdomain),
// "" if nothing.
func CheckName(s string) string {
	if s == "" {
		return "is missing: " + nameRule
	}
	if len(s) > maxName {
		return quote(s) + " is too long: " + nameRule
	}
	for part := range strings.SplitSeq(s, ".") {
		if !isDNSLabel(part, maxName) {
			return quote(s) + " is not a name: " + nameRule
		}
	}
	return ""
}

// CheckLabel says what is wrong with a namespace (DNS-1123 label), "" if nothing.
func CheckLabel(s string) string {
	const rule = "want at most 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit"
	if s == "" {
		return "is missing: " + rule
	}
	if !isDNSLabel(s, maxLabel) {
		return quote(s) + " is not a name: " + rule
	}
	return ""
}

func isDNSLabel(s string, max int) bool {
	if s == "" || len(s) > max || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for _, c := range []byte(s) {
		if !isLower(c) && !isDigit(c) && c != '-' {
			return false
		}
	}
	return true
}

// checkLabelKey follows Kubernetes: an optional DNS name and "/", then a short name.
func checkLabelKey(s string) string {
	prefix, name, found := strings.Cut(s, "/")
	if !found {
		prefix, name = "", s
	} else if CheckName(prefix) != "" {
		return "the key's part before '/' is not a DNS name: want for instance example.org/role"
	}
	if name == "" || !isQualified(name) {
		return "the key is not a label name: want at most 63 of letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"
	}
	return ""
}

func checkLabelValue(s string) string {
	if !isQualified(s) {
		return quote(s) +
			" is not a label value: want at most 63 of letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"
	}
	return ""
}

// isQualified is true of "" too, which a label's value may be.
func isQualified(s string) bool {
	if s == "" {
		return true
	}
	if len(s) > maxLabel || !isAlnum(s[0]) || !isAlnum(s[len(s)-1]) {
		return false
	}
	for _, c := range []byte(s) {
		if !isAlnum(c) && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

func isLower(c byte) bool { return 'a' <= c && c <= 'z' }
func isDigit(c byte) bool { return '0' <= c && c <= '9' }
func isAlnum(c byte) bool { return isLower(c) || isDigit(c) || 'A' <= c && c <= 'Z' }

// quote shows a bad value in a message, without its tail when it is long.
func quote(s string) string {
	if len(s) > 80 {
		s = strings.ToValidUTF8(s[:80], "") + "…"
	}
	return strconv.Quote(s)
}
