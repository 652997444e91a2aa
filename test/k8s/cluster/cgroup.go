package cluster

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const groupRoot = "/sys/fs/cgroup"

// hierarchy is a hierarchy of control groups of version 1.
type hierarchy struct {
	// mounted is its directory below groupRoot, options what it is mounted with.
	mounted, options string
	// own is the path of this process's group in it.
	own string
}

// hierarchies are those that this process is in. Those of version 2 are left out: the nodes have
// none.
func hierarchies() ([]hierarchy, error) {
	file, err := os.Open("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var out []hierarchy
	for lines := bufio.NewScanner(file); lines.Scan(); {
		field := strings.SplitN(lines.Text(), ":", 3)
		if len(field) < 3 || field[1] == "" {
			continue
		}
		h := hierarchy{mounted: field[1], options: field[1], own: field[2]}
		if name, ok := strings.CutPrefix(field[1], "name="); ok {
			h.mounted, h.options = name, "none,"+field[1]
		}
		if _, err := os.Stat(filepath.Join(groupRoot, h.mounted, "cgroup.procs")); err == nil {
			out = append(out, h)
		}
	}
	return out, nil
}

// group is the directory of a group below this process's own.
func (h hierarchy) group(name string) string {
	return filepath.Join(groupRoot, h.mounted, h.own, name)
}

// joinGroups puts this process into a new group of every hierarchy.
func joinGroups(all []hierarchy, name string) error {
	for _, h := range all {
		dir := h.group(name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("make control group: %w", err)
		}
		// A group of cpuset takes no process before it has been given these two.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			} else if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, file), value, 0); err != nil {
				return err
			}
		}
		// "0" is who writes.
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("join control group: %w", err)
		}
	}
	return nil
}

// mountGroups mounts the hierarchies as the calling thread's namespace of control groups has them.
func mountGroups(all []hierarchy) error {
	if err := mount("tmpfs", groupRoot, "tmpfs", "mode=755"); err != nil {
		return err
	}
	for _, h := range all {
		if err := mount("cgroup", filepath.Join(groupRoot, h.mounted), "cgroup",
			h.options); err != nil {
			return err
		}
	}
	return nil
}

// removeGroups removes the groups whose names begin so. The last of their processes may just be
// ending.
func removeGroups(name string) (err error) {
	all, err := hierarchies()
	for _, h := range all {
		found, _ := filepath.Glob(h.group(name + "*"))
		for _, dir := range found {
			err = errors.Join(err, removeGroup(dir))
		}
	}
	return err
}

func removeGroup(dir string) (err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeGroup(filepath.Join(dir, e.Name())))
		}
	}
	if err != nil {
		return err
	}
	for range 100 {
		if err = unix.Rmdir(dir); !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		return fmt.Errorf("remove control group %s: %w", dir, err)
	}
	return nil
}
