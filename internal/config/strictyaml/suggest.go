package strictyaml

import "strings"

// Nearest is the one of known that s was most likely meant to be, "" when none is near.
func Nearest(s string, known []string) string {
	best, bestDist := "", len(s)/3+1
	for _, k := range known {
		if dist := distance(strings.ToLower(s), strings.ToLower(k)); dist <= bestDist &&
			dist < max(len(k), 2) {
			if best == "" || dist < bestDist {
				best, bestDist = k, dist
			}
		}
	}
	return best
}

// distance is the number of letters to insert, delete, change or swap with the
// next one (optimal string alignment).
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	var prev2 []int
	prev := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur := make([]int, len(b)+1)
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev = prev, cur
	}
	return prev[len(b)]
}
