// Package version says what this binary is.
package version

import (
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// Version is the release, set at link time with
// -ldflags "-X weft.dev/weft/internal/version.Version=v1.2.3".
var Version = "dev"

// Info is what `weft version` prints.
type Info struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Built    string `json:"built,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Kernel   string `json:"kernel"`
}

// Get gathers the binary's and the machine's versions.
func Get() Info {
	info := Info{
		Version:  Version,
		Go:       runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Kernel:   Kernel(),
	}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return info
	}
	for _, setting := range build.Settings {
		switch setting.Key {
		case "vcs.revision":
			info.Commit = setting.Value
		case "vcs.time":
			info.Built = setting.Value
		case "vcs.modified":
			info.Modified = setting.Value == "true"
		}
	}
	return info
}

// Kernel is the running kernel's release, such as "6.12.4-amd64".
func Kernel() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(name.Release[:])
}
