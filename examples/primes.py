"""Prints the primes below 100, each as soon as it is found, and a summary.

    cofferdam run examples/primes.py
"""

import time

LIMIT = 100


def is_prime(number):
    divisor = 2
    while divisor * divisor <= number:
        if number % divisor == 0:
            return False
        divisor += 1
    return number > 1


found = []
for number in range(LIMIT):
    if is_prime(number):
        found.append(number)
        print(number)
        time.sleep(0.02)  # so that one can see the output come live

print(f"{len(found)} primes below {LIMIT}, their sum is {sum(found)}")
