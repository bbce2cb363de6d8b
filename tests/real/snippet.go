// Runs docs/verify/verify.go, which the test copies beside it. Usage: snippet SECRET SIGNATURE BODY.
package main

import (
	"fmt"
	"os"
	"time"

	"snippet/verify"
)

func main() {
	body, err := os.ReadFile(os.Args[3])
	if err != nil {
		panic(err)
	}
	fmt.Println(verify.Verify(os.Args[1], os.Args[2], body, 300*time.Second))
}
