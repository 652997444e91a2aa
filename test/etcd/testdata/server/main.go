// Command server is etcd, as its own module has it: a module of its own, so that the product's
// needs nothing of it.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
