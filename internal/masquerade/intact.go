package masquerade

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Intact tells whether the rules that Apply made for the options are still there. It looks at
// the table, its chain and the number of rules in it.
func Intact(options *Options) (bool, error) {
	plan, err := newPlan(*options)
	if err != nil {
		return false, err
	}
	conn, err := open()
	if err != nil {
		return false, err
	}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, fmt.Errorf("list nftables chains: %w", err)
	}
	at := slices.IndexFunc(chains,
		func(c *nftables.Chain) bool { return c.Table.Name == plan.table && c.Name == chainName })
	if at < 0 {
		return false, nil
	}
	rules, err := conn.GetRules(chains[at].Table, chains[at])
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list nftables rules: %w", err)
	}
	return len(rules) == len(plan.rules), nil
}
